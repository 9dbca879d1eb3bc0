#include "core/transport/local/life_watch.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstddef>
#include <utility>

#include "core/base/assert.h"
#include "core/base/thread.h"

namespace ciranda {
namespace {

// The word of a mark holds the number of the thread that holds it, and the kernel's bits
// FUTEX_WAITERS and FUTEX_OWNER_DIED. 0: nobody has held it yet.
constexpr std::uint32_t kLeft = FUTEX_TID_MASK;  // no thread has this number

using Word = std::atomic<std::uint32_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(std::uint32_t));

void wake_all(Word& word) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr,
            nullptr, 0);
}

// Holds a mark for the calling thread. The kernel finds the word by the thread's robust list, which
// has this one entry. glibc's own list, which this one replaces for as long, serves mutexes that
// the thread does not use.
class HeldMark {
 public:
  explicit HeldMark(LifeMark& mark) : word_(mark.word) {
    std::size_t bytes = 0;
    ::syscall(SYS_get_robust_list, 0, &of_glibc_, &bytes);
    entry_.next = &head_.list;
    head_.list.next = &entry_;
    head_.futex_offset = reinterpret_cast<char*>(&word_) - reinterpret_cast<char*>(&entry_);
    head_.list_op_pending = nullptr;
    // Where the kernel refuses it, sockets alone tell of a death.
    if (::syscall(SYS_set_robust_list, &head_, sizeof head_) != 0) return;
    put(static_cast<std::uint32_t>(::syscall(SYS_gettid)));
  }
  ~HeldMark() {
    put(kLeft);
    // The kernel reads the list once more when the thread ends, and writes to memory by it.
    ::syscall(SYS_set_robust_list, of_glibc_, sizeof head_);
  }
  HeldMark(const HeldMark&) = delete;
  HeldMark& operator=(const HeldMark&) = delete;

 private:
  void put(std::uint32_t value) {
    if ((word_.exchange(value) & FUTEX_WAITERS) != 0) wake_all(word_);
  }

  Word& word_;
  robust_list entry_{};
  robust_list_head head_{};
  robust_list_head* of_glibc_ = nullptr;
};

}  // namespace

Status LifeWatch::start(const ControlBlock& control, Rank self, int ranks, Died died) {
  CIRANDA_ASSERT(!thread_.joinable() && self >= 0 && self < ranks);
  auto thread = start_thread(
      "ciranda-watch",
      [this, &control, self, ranks, tell = std::move(died)] { run(control, self, ranks, tell); });
  if (!thread) return thread.error();
  thread_ = std::move(thread).value();
  return {};
}

void LifeWatch::run(const ControlBlock& control, Rank self, int ranks, const Died& died) {
  const HeldMark held(control.life_mark(self));
  Rank watched = (self + 1) % ranks;  // itself: nobody is left to watch, or a death was told
  for (;;) {
    LifeMark& mark = control.life_mark(watched);
    awaited_.store(&mark);
    std::uint32_t seen = mark.word.load();
    if (stops_.load()) return;
    if (watched != self && (seen & FUTEX_OWNER_DIED) != 0) {
      died(std::exchange(watched, self));
      continue;
    }
    if (watched != self && (seen & FUTEX_TID_MASK) == kLeft) {
      watched = (watched + 1) % ranks;
      continue;
    }
    const std::uint32_t waited = seen | FUTEX_WAITERS;
    if (seen != waited && !mark.word.compare_exchange_strong(seen, waited)) continue;
    if (stops_.load()) return;
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&mark.word), FUTEX_WAIT, waited, nullptr,
              nullptr, 0);
  }
}

// The thread has set FUTEX_WAITERS before it looks at stops_ for the last time, and then waits only
// while the bit is set. Other threads that wait for the same word set it again.
void LifeWatch::stop() {
  if (!thread_.joinable()) return;
  stops_.store(true);
  if (LifeMark* mark = awaited_.load()) {
    mark->word.fetch_and(~std::uint32_t{FUTEX_WAITERS});
    wake_all(mark->word);
  }
  thread_.join();
}

}  // namespace ciranda
