// What could break: events of two hosts that stand in the wrong order, or drift apart.
#include "core/trace/host_clock.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <vector>

namespace ciranda {
namespace {

constexpr std::int64_t kUs = 1'000;
constexpr std::int64_t kSecond = 1'000'000'000;

struct Way {
  std::int64_t there_ns, back_ns;
};

struct Seen {
  std::vector<BarrierTimes> own, rank_0;
};

// Barriers one after the other, of a host whose clock is ahead by `ahead_ns`: host 0 ends one when
// the other's frame is there, and tells it. `ways`: of each barrier's frames; `late_ns`: how much
// later each time rank 0 notices.
Seen barriers(std::int64_t ahead_ns, const std::vector<Way>& ways, std::int64_t late_ns = 0) {
  Seen seen;
  std::int64_t entered_ns = 100 * kSecond, entered_0_ns = entered_ns;  // by host 0's clock
  for (const Way& way : ways) {
    const std::int64_t order_ns = std::max(entered_ns + way.there_ns, entered_0_ns);
    const std::int64_t end_ns = order_ns + way.back_ns;
    const std::int64_t end_0_ns = order_ns + late_ns;
    const auto of = [](std::int64_t ns) { return static_cast<std::uint64_t>(ns); };
    seen.own.push_back({of(entered_ns + ahead_ns), of(end_ns + ahead_ns)});
    seen.rank_0.push_back({of(entered_0_ns), of(end_0_ns)});
    entered_ns = end_ns;
    entered_0_ns = end_0_ns;
  }
  return seen;
}

std::int64_t found(const Seen& seen) {
  return compare_clocks(seen.own, seen.rank_0).ahead_ns;
}

// Frames that take as long as a seed wants.
Seen barriers_on_a_busy_machine(unsigned seed, std::int64_t ahead_ns) {
  std::mt19937 random(seed);
  const auto some_us = [&random] {
    return static_cast<std::int64_t>(1U << random() % 12) * kUs;  // often short, at times ms
  };
  std::vector<Way> ways;
  for (int i = 0; i < 16; ++i) ways.push_back({some_us(), some_us()});
  return barriers(ahead_ns, ways, some_us());
}

TEST(HostClock, FindsWhatAClockIsAhead) {
  for (const std::int64_t ahead : {std::int64_t{0}, 3600 * kSecond, -50 * kSecond}) {
    EXPECT_EQ(found(barriers(ahead, {{40 * kUs, 40 * kUs}})), ahead);
    // The fastest frames count, whatever was late in other barriers.
    EXPECT_EQ(found(barriers(ahead, {{900 * kUs, 40 * kUs},
                                     {40 * kUs, 40 * kUs},
                                     {40 * kUs, 5'000 * kUs},
                                     {70 * kUs, 60 * kUs}})),
              ahead);
  }
}

TEST(HostClock, IsOffByHalfOfWhatTheWaysDiffer) {
  const std::vector<Way> slow_back(8, {20 * kUs, 100 * kUs});
  EXPECT_EQ(found(barriers(kSecond, slow_back)), kSecond + 40 * kUs);
  const std::vector<Way> slow_there(8, {100 * kUs, 20 * kUs});
  EXPECT_EQ(found(barriers(kSecond, slow_there)), kSecond - 40 * kUs);
}

// A rank 0 that notices late could push this host's events behind what they have caused.
TEST(HostClock, KeepsCausesBeforeTheirEffects) {
  for (const std::int64_t late : {0 * kUs, 10 * kUs, 300 * kUs}) {
    const Seen seen = barriers(kSecond, std::vector<Way>(8, {30 * kUs, 50 * kUs}), late);
    const HostClock clock(compare_clocks(seen.own, seen.rank_0));
    for (std::size_t i = 0; i < seen.own.size(); ++i) {
      EXPECT_LE(clock.at_host_0(seen.own[i].begin_ns), seen.rank_0[i].end_ns);
      EXPECT_LE(seen.rank_0[i].begin_ns, clock.at_host_0(seen.own[i].end_ns));
    }
  }
}

TEST(HostClock, SaysHowFarOffItMayBe) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const Seen first = barriers_on_a_busy_machine(seed, kSecond);
    const Seen last = barriers_on_a_busy_machine(seed + 1000, kSecond);
    const HostClock clock(compare_clocks(first.own, first.rank_0),
                          compare_clocks(last.own, last.rank_0));
    for (const Seen& seen : {first, last}) {
      const ClockReading reading = compare_clocks(seen.own, seen.rank_0);
      EXPECT_LE(std::abs(reading.ahead_ns - kSecond), reading.error_ns) << seed;
      EXPECT_LE(reading.error_ns, clock.error_ns());
    }
  }
  const Seen quiet = barriers(kSecond, std::vector<Way>(8, {40 * kUs, 40 * kUs}));
  EXPECT_EQ(compare_clocks(quiet.own, quiet.rank_0).error_ns, 80 * kUs);
  EXPECT_EQ(HostClock().error_ns(), 0);
}

TEST(HostClock, FollowsADriftBetweenTwoReadings) {
  const auto at = [](std::int64_t s) { return static_cast<std::uint64_t>(s * kSecond); };
  // 50 microseconds a second too fast.
  const HostClock clock(ClockReading{.at_ns = at(2'000), .ahead_ns = 1'000 * kSecond},
                        ClockReading{.at_ns = at(2'100), .ahead_ns = 1'000 * kSecond + 5'000'000});
  EXPECT_EQ(clock.at_host_0(at(2'000)), at(1'000));
  EXPECT_EQ(clock.at_host_0(at(2'050)), at(1'050) - 2'500'000);
  EXPECT_EQ(clock.at_host_0(at(2'100)), at(1'100) - 5'000'000);
  EXPECT_EQ(clock.at_host_0(at(2'120)), at(1'120) - 6'000'000);
}

TEST(HostClock, OfOneReadingOrNoneIsEven) {
  const HostClock one(ClockReading{.at_ns = 2'000, .ahead_ns = -700});
  EXPECT_EQ(one.at_host_0(1'000), 1'700u);
  EXPECT_EQ(one.at_host_0(9'000), 9'700u);
  EXPECT_EQ(HostClock().at_host_0(123), 123u);
}

}  // namespace
}  // namespace ciranda
