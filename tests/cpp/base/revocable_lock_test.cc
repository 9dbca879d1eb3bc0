// What could break: a writer that writes after the others have gone on, or one that was killed
// and keeps them waiting.
#include "core/base/revocable_lock.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

namespace ciranda {
namespace {

// A lock that processes share after a fork, and what they tell each other.
class Shared {
 public:
  Shared()
      : memory_(::mmap(nullptr, sizeof(Content), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                       -1, 0)) {
    lock().make();
  }
  ~Shared() { ::munmap(memory_, sizeof(Content)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  RevocableLock& lock() const { return static_cast<Content*>(memory_)->lock; }
  std::atomic<int>& told() const { return static_cast<Content*>(memory_)->told; }

 private:
  struct Content {
    RevocableLock lock;
    std::atomic<int> told;
  };
  void* const memory_;
};

TEST(RevocableLock, RefusesOlderEpochsOnceItIsRevoked) {
  const Shared shared;
  ASSERT_TRUE(shared.lock().acquire(3));
  shared.lock().release();
  ASSERT_TRUE(shared.lock().revoke(4));
  EXPECT_FALSE(shared.lock().acquire(3));
  ASSERT_TRUE(shared.lock().acquire(4));
  shared.lock().release();
  ASSERT_TRUE(shared.lock().revoke(2));  // a later caller with an older number opens nothing
  EXPECT_FALSE(shared.lock().acquire(3));
}

TEST(RevocableLock, WaitsForItsHolder) {
  const Shared shared;
  ASSERT_TRUE(shared.lock().acquire(1));
  std::atomic<bool> is_done{false};
  std::thread other([&] {
    EXPECT_TRUE(shared.lock().revoke(2));
    EXPECT_TRUE(is_done.load());
  });
  std::this_thread::yield();
  is_done.store(true);
  shared.lock().release();
  other.join();
}

TEST(RevocableLock, DoesNotWaitForAHolderThatWasKilled) {
  const Shared shared;
  const pid_t child = ::fork();
  if (child == 0) {
    shared.told().store(shared.lock().acquire(1) ? 1 : 2);
    for (;;) ::pause();
  }
  while (shared.told().load() == 0) std::this_thread::yield();
  ASSERT_EQ(shared.told().load(), 1);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_TRUE(shared.lock().revoke(2));
  EXPECT_FALSE(shared.lock().acquire(1));
  ASSERT_TRUE(shared.lock().acquire(2));
  shared.lock().release();
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

// Whoever is about to take it when it is killed, or when the lock is revoked, does not write.
TEST(RevocableLock, IsHeldByNobodyAfterItIsRevoked) {
  for (int round = 0; round < 20; ++round) {
    const Shared shared;
    const pid_t child = ::fork();
    if (child == 0) {
      while (shared.lock().acquire(1)) {
        shared.told().fetch_add(1);
        shared.lock().release();
      }
      ::_exit(0);
    }
    while (shared.told().load() < 100 * round) std::this_thread::yield();
    if (round % 2 == 0) {
      ASSERT_EQ(::kill(child, SIGKILL), 0);
    }
    ASSERT_TRUE(shared.lock().revoke(2));
    const int writes = shared.told().load();
    EXPECT_EQ(::waitpid(child, nullptr, 0), child);
    EXPECT_EQ(shared.told().load(), writes);
  }
}

}  // namespace
}  // namespace ciranda
