#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/mutex.h"
#include "core/engine/cycle.h"
#include "core/engine/rank_context.h"

namespace ciranda {

// From where a rank is driven: whoever has the seat runs its Cycle, one thread at a time. The seat
// owns the cycle, so that nobody gets at it in another way, and it has one way out, leave(), which
// sees to it that what this thread leaves behind is done by somebody: docs/threads.md says why, and
// tests/model/seat.pml proves it.
class CIRANDA_CAPABILITY("seat") Seat {
 public:
  enum class As : std::uint8_t {
    kDriver,      // blocks until something is done; peers count on it
    kPoller,      // runs one turn
    kVisitor,     // looks something up
    kBackground,  // the background thread
  };

  // `rank` outlives it.
  explicit Seat(RankContext& rank) : rank_(rank), cycle_(rank) {}

  // Has the seat as long as it lives.
  class CIRANDA_SCOPED_CAPABILITY Taken {
   public:
    // Blocks while another thread has it.
    Taken(Seat& seat, As as) ACQUIRE(seat) : seat_(seat), as_(as) { seat_.enter(as); }
    ~Taken() RELEASE() { seat_.leave(as_); }
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;

   private:
    Seat& seat_;
    const As as_;
  };
  Cycle& cycle() REQUIRES(this) { return cycle_; }

  // As a driver: gives the seat up until there may be news, at most until `until_ns`
  // (monotonic_ns). Does not sleep if one of `handles` was all that was missing.
  void sleep(std::span<const Handle> handles, std::uint64_t until_ns) REQUIRES(this);
  // Gives the seat up while `fn` runs.
  template <typename Fn>
  void aside(Fn fn) REQUIRES(this) {
    unlock();
    publish();
    fn();
    lock();
  }

  // One turn, if nobody has the seat. Does not block.
  void poll(const Handle& handle) EXCLUDES(this);
  // Tells the peers what was submitted, unless a thread has the seat: it does so when it leaves.
  // True if that was anything. Does not block.
  bool publish() EXCLUDES(this);

  // A user's thread wants the seat: the background thread leaves it.
  bool wanted() const { return wanted_.load(std::memory_order_relaxed) != 0; }
  // As the background thread, before it leaves: turns until nothing moves for a while or a user's
  // thread wants the seat. When its sleep ends although nobody calls (monotonic_ns, kNever).
  std::uint64_t run_until_idle() REQUIRES(this);

  // Where there is no other thread: before the first one starts, and in a child made by fork.
  Cycle& alone() noexcept CIRANDA_ANNOTATION(no_thread_safety_analysis) { return cycle_; }

 private:
  void enter(As as) ACQUIRE();
  void leave(As as) RELEASE();
  void lock() ACQUIRE();
  void unlock() RELEASE() { mutex_.unlock(); }
  bool try_lock() TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  bool leaves_work(As as) REQUIRES(this);
  bool listen() REQUIRES(this);
  bool peer_sleeps() const;
  void arm() REQUIRES(this);
  void ask_to_drive(std::span<const Rank> blockers);

  RankContext& rank_;
  BareMutex mutex_;
  std::atomic<int> wanted_{0};
  std::atomic<std::uint64_t> next_call_ns_{0};  // of poll()
  Cycle cycle_ GUARDED_BY(this);
  std::vector<Watched> watched_ GUARDED_BY(this);    // scratch
  std::uint64_t next_turn_ns_ GUARDED_BY(this) = 0;  // the end of the background thread's sleep
};

}  // namespace ciranda
