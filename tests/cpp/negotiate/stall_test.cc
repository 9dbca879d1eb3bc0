// What could break: a report that hides who is missing.
#include "core/negotiate/stall.h"

#include <gtest/gtest.h>

#include "negotiate/requests.h"

namespace ciranda {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

StalledOp stalled(const RequestSpec& spec, std::vector<Rank> missing, std::uint64_t since_s,
                  std::uint32_t occurrence = 0) {
  return {std::make_shared<const RequestSpec>(spec), occurrence, std::move(missing),
          since_s * kSecond};
}

std::optional<std::string> report(const std::vector<StalledOp>& waiting) {
  return stall_report(waiting, 100 * kSecond, 60 * kSecond, kSecond);
}

TEST(StallReport, IsSilentBelowTheThreshold) {
  EXPECT_FALSE(report({}).has_value());
  EXPECT_FALSE(report({stalled(allreduce("w"), {1}, 41)}).has_value());
  EXPECT_TRUE(report({stalled(allreduce("w"), {1}, 40)}).has_value());
}

TEST(StallReport, NamesRankTimeAndTensor) {
  EXPECT_EQ(*report({stalled(allreduce("w"), {1}, 39)}),
            "waiting for rank 1 since 61 s: allreduce 'w'; rank 1 has not submitted it. Check that "
            "every rank runs the same steps.");
}

TEST(StallReport, GathersAHundredTensorsOfOneCauseIntoOneLine) {
  std::vector<StalledOp> waiting;
  for (int i = 0; i < 100; ++i) waiting.push_back(stalled(allreduce(std::to_string(i)), {1}, 39));
  EXPECT_EQ(*report(waiting),
            "waiting for rank 1 since 61 s: allreduce '0', '1' and 98 more; rank 1 has not "
            "submitted them. Check that every rank runs the same steps.");
}

TEST(StallReport, HasALineForEachSetOfMissingRanks) {
  const RequestSpec barrier{.kind = OpKind::kBarrier};
  EXPECT_EQ(*report({stalled(allreduce("a"), {1, 2}, 30), stalled(allreduce("young"), {0}, 90),
                     stalled(allreduce("b"), {0}, 20), stalled(barrier, {1, 2}, 35, 4)}),
            "waiting for rank 0 since 80 s: allreduce 'b'; rank 0 has not submitted it.\n"
            "waiting for ranks 1, 2 since 70 s: allreduce 'a', barrier without a name (call 4); "
            "ranks 1, 2 have not submitted them. Check that every rank runs the same steps.");
}

TEST(StallReport, IgnoresAClockThatStandsBeforeTheRequest) {
  EXPECT_FALSE(report({stalled(allreduce("w"), {1}, 500)}).has_value());
}

}  // namespace
}  // namespace ciranda
