#pragma once

#include <atomic>
#include <cstdint>

namespace ciranda {

// Where a rank's waiting thread sleeps; lives in shared memory. A ringer first publishes what
// changed, then calls ring(); it costs one fence and one load while nobody sleeps.
struct alignas(64) Doorbell {
  std::atomic<std::uint32_t> rings;     // futex word
  std::atomic<std::uint32_t> sleepers;  // threads that sleep or are about to

  // Wakes every sleeper, if there is one. Any thread, any process.
  void ring();
  // The same without the fence, for a caller that rings several and fenced once.
  void wake_sleepers();

  // To sleep: announce(), look once more for work, then sleep(ticket) or withdraw().
  // The announcement is ordered before the look, so a change is either seen or rings.
  std::uint32_t announce();
  void withdraw();
  // Returns after a ring since announce() or after `timeout_ns`; withdraws. May wake early.
  void sleep(std::uint32_t ticket, std::uint64_t timeout_ns);
};

}  // namespace ciranda
