// What could break: a ring between the last look and the sleep is lost, and somebody sleeps on.
#include "core/transport/local/doorbell.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/base/clock.h"

namespace ciranda {
namespace {

constexpr std::uint64_t kLongNs = 20'000'000'000;

TEST(Doorbell, ARingAfterTheAnnouncementEndsTheSleepAtOnce) {
  Doorbell bell{};
  const std::uint32_t ticket = bell.announce();
  bell.ring();
  const std::uint64_t begin = monotonic_ns();
  bell.sleep(ticket, kLongNs);
  EXPECT_LT(monotonic_ns() - begin, kLongNs / 4);
  EXPECT_EQ(bell.sleepers.load(), 0u);
}

TEST(Doorbell, SleepsUntilTheTimeoutWithoutARing) {
  Doorbell bell{};
  const std::uint64_t begin = monotonic_ns();
  bell.sleep(bell.announce(), 20'000'000);
  EXPECT_GE(monotonic_ns() - begin, 15'000'000u);
}

TEST(Doorbell, NoPublishedChangeIsEverMissed) {
  Doorbell bell{};
  std::atomic<int> turn{0};
  constexpr int kTurns = 20'000;
  const std::uint64_t begin = monotonic_ns();
  const auto play = [&](int mine) {
    for (int i = mine; i < kTurns; i += 2) {
      while (turn.load(std::memory_order_acquire) != i) {
        const std::uint32_t ticket = bell.announce();
        if (turn.load(std::memory_order_acquire) == i) {
          bell.withdraw();
        } else {
          bell.sleep(ticket, kLongNs);
        }
      }
      turn.store(i + 1, std::memory_order_release);
      bell.ring();
    }
  };
  std::thread other([&] { play(1); });
  play(0);
  other.join();
  EXPECT_LT(monotonic_ns() - begin, kLongNs);
}

}  // namespace
}  // namespace ciranda
