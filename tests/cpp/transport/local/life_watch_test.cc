// What could break: a death that nobody notices, a rank that leaves and is taken for dead, a watch
// that cannot be stopped.
#include "core/transport/local/life_watch.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace ciranda {
namespace {

using std::chrono::milliseconds;

// The control block of some ranks, which processes share after a fork.
class Shared {
 public:
  explicit Shared(int ranks)
      : bytes_(ControlBlock::memory_bytes(ranks)),
        memory_(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
        control(static_cast<std::byte*>(memory_), ranks) {}
  ~Shared() { ::munmap(memory_, bytes_); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  bool is_held(Rank rank) const { return control.life_mark(rank).word.load() != 0; }

 private:
  const std::size_t bytes_;
  void* const memory_;

 public:
  const ControlBlock control;
};

// The watch of a rank, and whose death it has told.
class Watch {
 public:
  Watch(const Shared& shared, Rank self, int ranks) {
    const Status started =
        watch_.start(shared.control, self, ranks, [this](Rank local) { told_.store(local); });
    EXPECT_TRUE(started.ok());
    while (!shared.is_held(self)) std::this_thread::yield();
  }
  void stop() { watch_.stop(); }
  int told() const { return told_.load(); }
  int wait() const {
    while (told() < 0) std::this_thread::yield();  // at most for the test's own time
    return told();
  }

 private:
  std::atomic<int> told_{-1};
  LifeWatch watch_;
};

// A process that is one rank until it is killed.
class Process {
 public:
  Process(const Shared& shared, Rank self, int ranks) : pid_(::fork()) {
    if (pid_ == 0) {
      const Watch watch(shared, self, ranks);
      if (::fork() == 0) ::_exit(0);  // a child that ends is no rank that ends
      for (;;) ::pause();
    }
    while (!shared.is_held(self)) std::this_thread::yield();
  }
  ~Process() { kill(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_;
};

TEST(LifeWatch, TellsThatAProcessWasKilled) {
  const Shared shared(2);
  Process other(shared, 1, 2);
  const Watch own(shared, 0, 2);
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(own.told(), -1);
  other.kill();
  EXPECT_EQ(own.wait(), 1);
}

TEST(LifeWatch, TellsOfADeathThatCameBeforeTheWatch) {
  const Shared shared(2);
  Process other(shared, 1, 2);
  other.kill();
  const Watch own(shared, 0, 2);
  EXPECT_EQ(own.wait(), 1);
}

void* robust_list_of_this_thread() {
  void* head = nullptr;
  std::size_t bytes = 0;
  EXPECT_EQ(::syscall(SYS_get_robust_list, 0, &head, &bytes), 0);
  return head;
}

// The kernel reads a thread's list when the thread ends. One that was on the stack is overwritten
// by then, and the kernel would write wherever it points.
TEST(LifeWatch, LeavesTheKernelNoListOnTheStackOfItsThread) {
  const Shared shared(2);
  Process other(shared, 1, 2);
  other.kill();
  static std::atomic<void*> at_the_end = nullptr;
  struct AtTheEnd {
    ~AtTheEnd() { at_the_end = robust_list_of_this_thread(); }
  };
  std::atomic<void*> while_held = nullptr;
  LifeWatch watch;
  ASSERT_TRUE(watch
                  .start(shared.control, 0, 2,
                         [&](Rank) {
                           thread_local AtTheEnd here;
                           while_held = robust_list_of_this_thread();
                         })
                  .ok());
  while (while_held == nullptr) std::this_thread::yield();
  watch.stop();
  EXPECT_NE(at_the_end, nullptr);
  EXPECT_NE(at_the_end, while_held);
}

TEST(LifeWatch, LeavingIsNoDeathAndTheNextRankIsWatched) {
  const Shared shared(3);
  Process last(shared, 2, 3);
  Watch middle(shared, 1, 3);
  const Watch own(shared, 0, 3);
  middle.stop();
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(own.told(), -1);
  last.kill();
  EXPECT_EQ(own.wait(), 2);
}

TEST(LifeWatch, StopsWhatItIsWaitingFor) {
  const Shared shared(3);
  Watch before_any_other(shared, 0, 3);
  before_any_other.stop();
  EXPECT_EQ(before_any_other.told(), -1);
  const Shared alone(1);
  Watch only(alone, 0, 1);
  only.stop();
  only.stop();
}

TEST(LifeWatch, ManyStartAndStopInAnyOrder) {
  constexpr int kRanks = 4;
  for (int round = 0; round < 50; ++round) {
    const Shared shared(kRanks);
    std::vector<std::unique_ptr<Watch>> watches;
    for (Rank rank = 0; rank < kRanks; ++rank) {
      watches.push_back(std::make_unique<Watch>(shared, rank, kRanks));
    }
    std::vector<std::thread> stops;
    for (Rank rank = 0; rank < kRanks; ++rank) {
      stops.emplace_back([&watches, rank, round] {
        if ((rank + round) % 3 == 0) std::this_thread::yield();
        watches[static_cast<std::size_t>(rank)]->stop();
      });
    }
    for (std::thread& each : stops) each.join();
    for (const auto& each : watches) EXPECT_EQ(each->told(), -1);
  }
}

}  // namespace
}  // namespace ciranda
