// What could break: two ranks that decide differently, an operation that runs before everybody is
// ready, a submission that nobody answers. Thousands of random jobs look for it; one seed is one
// job, so every failure can be run again.
//
//   CIRANDA_SIM_SCHEDULES=1000000 sim_tests     more jobs
//   CIRANDA_SIM_SEED=4711 sim_tests             that job alone
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "sim/schedule.h"
#include "sim/seeds.h"

namespace ciranda::sim {
namespace {

constexpr std::uint64_t kSchedules = 10'000;

TEST(NegotiationSimulation, KeepsItsInvariantsInEverySchedule) {
  const Seeds seeds(kSchedules);
  Coverage seen;
  for (std::uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    const auto violation = run_schedule(seed, seen);
    ASSERT_FALSE(violation.has_value())
        << *violation << "\nafter " << seen.schedules
        << " schedules; run it again with CIRANDA_SIM_SEED=" << seed;
  }
  RecordProperty("frames", std::to_string(seen.frames));
  RecordProperty("runs", std::to_string(seen.runs));
  RecordProperty("resubmits", std::to_string(seen.resubmits));
  if (seeds.count < kSchedules) return;
  // A simulation that avoids trouble proves nothing.
  EXPECT_GT(seen.frames, 10 * kSchedules);
  EXPECT_GT(seen.runs, 3 * kSchedules);
  EXPECT_GT(seen.resubmits, kSchedules / 10);
  EXPECT_GT(seen.cached_requests, kSchedules);
  EXPECT_GT(seen.rooted, kSchedules / 4);
  EXPECT_GT(seen.messages, kSchedules / 4);
  EXPECT_GT(seen.crossed, kSchedules / 200);
  EXPECT_GT(seen.mismatches, kSchedules / 10);
  EXPECT_GT(seen.without_splits, kSchedules / 200);
  EXPECT_GT(seen.too_many_rows, kSchedules / 200);
  EXPECT_GT(seen.without_memory, kSchedules / 200);
  EXPECT_GT(seen.duplicates, kSchedules / 100);
  EXPECT_GT(seen.left, kSchedules / 10);
  EXPECT_GT(seen.fused, kSchedules / 10);
  EXPECT_GT(seen.lost, kSchedules / 50);
  EXPECT_GT(seen.malformed, kSchedules / 100);
  EXPECT_GT(seen.pauses, kSchedules / 10);
  EXPECT_GT(seen.added, kSchedules / 10);
  EXPECT_GT(seen.removed, kSchedules / 40);
  EXPECT_GT(seen.kept_groups, kSchedules / 1000);
  EXPECT_GT(seen.in_groups, kSchedules / 4);
  EXPECT_GT(seen.joins, kSchedules / 20);
  EXPECT_GT(seen.without_joined, kSchedules / 20);
  EXPECT_GT(seen.refused_joined, kSchedules / 20);
  EXPECT_GT(seen.strangers, kSchedules / 40);
  if (std::getenv("CIRANDA_SIM_VERBOSE") != nullptr)
    std::printf(
        "frames %lu runs %lu resubmits %lu cached %lu rooted %lu messages %lu crossed %lu "
        "mismatches %lu without_splits %lu too_many_rows %lu without_memory %lu duplicates %lu "
        "left %lu fused %lu lost %lu malformed %lu pauses %lu added %lu "
        "removed %lu kept %lu in_groups %lu joins %lu without_joined %lu refused_joined %lu "
        "strangers %lu\n",
        seen.frames, seen.runs, seen.resubmits, seen.cached_requests, seen.rooted, seen.messages,
        seen.crossed, seen.mismatches, seen.without_splits, seen.too_many_rows, seen.without_memory,
        seen.duplicates, seen.left, seen.fused, seen.lost, seen.malformed, seen.pauses, seen.added,
        seen.removed, seen.kept_groups, seen.in_groups, seen.joins, seen.without_joined,
        seen.refused_joined, seen.strangers);
}

TEST(NegotiationSimulation, TakesTheSameCourseForTheSameSeed) {
  Coverage first;
  Coverage second;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    ASSERT_FALSE(run_schedule(seed, first).has_value());
    ASSERT_FALSE(run_schedule(seed, second).has_value());
  }
  EXPECT_EQ(first.frames, second.frames);
  EXPECT_EQ(first.runs, second.runs);
  EXPECT_EQ(first.resubmits, second.resubmits);
}

}  // namespace
}  // namespace ciranda::sim
