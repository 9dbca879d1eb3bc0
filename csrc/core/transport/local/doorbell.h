#pragma once

#include <atomic>
#include <cstdint>

namespace ciranda {

// A futex in shared memory on which waiting threads of one rank sleep. A ringer first publishes its
// change, then calls ring(), which costs one fence and one load while nobody sleeps.
struct alignas(64) Doorbell {
  std::atomic<std::uint32_t> rings;     // futex word
  std::atomic<std::uint32_t> sleepers;  // threads that sleep or are about to

  // Wakes every sleeper. Any thread of any process may call it.
  void ring();
  // Like ring() but without the fence, for a caller that rings several doorbells after one fence.
  void wake_sleepers();

  // A sleeper calls announce(), looks for work once more, and then calls sleep(ticket) or
  // withdraw(). The announcement is ordered before the look, so the sleeper either sees a change
  // or is rung for it.
  std::uint32_t announce();
  void withdraw();
  // Blocks until a ring since announce() or for `timeout_ns`, then withdraws. May return early.
  void sleep(std::uint32_t ticket, std::uint64_t timeout_ns);
};

}  // namespace ciranda
