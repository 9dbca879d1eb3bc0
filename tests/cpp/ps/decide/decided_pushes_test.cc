// What could break: a push that counts twice, or a number that goes back.
#include "core/ps/decide/decided_pushes.h"

#include <gtest/gtest.h>

#include <vector>

namespace ciranda::ps {
namespace {

std::uint64_t outcomes(const DecidedPushes& pushes, Outcome outcome) {
  return pushes.counters().outcomes[static_cast<std::size_t>(outcome)];
}

TEST(DecidedPushes, ADuplicateIsCountedButIsNoPush) {
  DecidedPushes pushes(2);
  pushes.decide(1, 1, Outcome::kApplied);
  pushes.decide(1, 2, Outcome::kStale);
  pushes.decide(1, 3, Outcome::kDuplicate);  // of a part of its task
  pushes.count_duplicate();
  EXPECT_EQ(pushes.latest(1), 3u);
  EXPECT_EQ(pushes.latest(0), 0u);
  EXPECT_EQ(pushes.pushes(1), 2u);
  EXPECT_EQ(outcomes(pushes, Outcome::kApplied), 1u);
  EXPECT_EQ(outcomes(pushes, Outcome::kDuplicate), 2u);
}

TEST(DecidedPushes, NumbersOnlyGrow) {
  DecidedPushes pushes(1);
  pushes.skip_to(0, 7);
  pushes.skip_to(0, 3);
  EXPECT_EQ(pushes.latest(0), 7u);
  pushes.repeat({.worker = 0, .seq = 5}, Outcome::kApplied);
  EXPECT_EQ(pushes.latest(0), 7u);
  pushes.decide(0, 8, Outcome::kApplied);
  EXPECT_EQ(pushes.latest(0), 8u);
}

TEST(DecidedPushesDeathTest, NoneIsDecidedTwiceOrLeftOut) {
  DecidedPushes pushes(1);
  pushes.decide(0, 1, Outcome::kApplied);
  EXPECT_DEATH(pushes.decide(0, 1, Outcome::kApplied), "broken invariant");
  EXPECT_DEATH(pushes.decide(0, 3, Outcome::kApplied), "broken invariant");
}

TEST(DecidedPushes, StalenessHasABinForEachPowerOfTwo) {
  DecidedPushes pushes(1);
  for (const std::uint64_t staleness : {0u, 1u, 3u, 4u, 7u, 8u}) pushes.count_staleness(staleness);
  pushes.count_staleness(UINT64_MAX);
  const auto& bins = pushes.counters().staleness;
  EXPECT_EQ((std::vector<std::uint64_t>(bins.begin(), bins.begin() + 6)),
            (std::vector<std::uint64_t>{1, 1, 0, 1, 2, 1}));
  EXPECT_EQ(bins.back(), 1u);
}

TEST(DecidedPushes, PartsAndOutcomesAreRestored) {
  DecidedPushes pushes(1);
  EXPECT_TRUE(pushes.is_first({.task = 1, .part = 1}));
  EXPECT_FALSE(pushes.is_first({.task = 1, .part = 1}));
  pushes.repeat({.worker = 0, .seq = 1, .of = {.task = 2, .part = 1}}, Outcome::kLate);
  std::vector<std::byte> saved;
  Writer writer(saved);
  pushes.save(writer);
  DecidedPushes again(1);
  Reader reader(saved);
  again.restore(reader);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(outcomes(again, Outcome::kLate), 1u);
  EXPECT_FALSE(again.is_first({.task = 1, .part = 1}));
  EXPECT_FALSE(again.is_first({.task = 2, .part = 1}));
  EXPECT_TRUE(again.is_first({.task = 2, .part = 2}));
}

}  // namespace
}  // namespace ciranda::ps
