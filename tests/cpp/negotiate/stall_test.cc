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
            "waiting for rank 1 for 61 s: allreduce 'w'; rank 1 has not submitted it. Check that "
            "every rank runs the same steps.");
}

TEST(StallReport, GathersAHundredTensorsOfOneCauseIntoOneLine) {
  std::vector<StalledOp> waiting;
  for (int i = 0; i < 100; ++i) waiting.push_back(stalled(allreduce(std::to_string(i)), {1}, 39));
  EXPECT_EQ(*report(waiting),
            "waiting for rank 1 for 61 s: allreduce '0', '1' and 98 more; rank 1 has not "
            "submitted them. Check that every rank runs the same steps.");
}

TEST(StallReport, HasALineForEachSetOfMissingRanks) {
  const RequestSpec barrier{.kind = OpKind::kBarrier};
  EXPECT_EQ(*report({stalled(allreduce("a"), {1, 2}, 30), stalled(allreduce("young"), {0}, 90),
                     stalled(allreduce("b"), {0}, 20), stalled(barrier, {1, 2}, 35, 4)}),
            "waiting for rank 0 for 80 s: allreduce 'b'; rank 0 has not submitted it.\n"
            "waiting for ranks 1, 2 for 70 s: allreduce 'a', barrier without a name (call 4); "
            "ranks 1, 2 have not submitted them. Check that every rank runs the same steps.");
}

TEST(StallReport, IgnoresAClockThatStandsBeforeTheRequest) {
  EXPECT_FALSE(report({stalled(allreduce("w"), {1}, 500)}).has_value());
}

std::optional<std::pair<Rank, std::string>> crossing(const std::vector<StalledOp>& waiting) {
  const auto found = find_crossing(waiting, 1, "d/");
  if (!found) return std::nullopt;
  return std::pair(found->other, found->mine + " " + found->theirs);
}

TEST(Crossing, NamesTwoRanksThatWaitForEachOther) {
  EXPECT_EQ(crossing({stalled(allreduce("d/bucket"), {1, 2}, 0),  // ranks 0 and 3 are in backward
                      stalled(allreduce("d/fresh"), {0, 3}, 0)}),
            std::pair(Rank{0}, std::string("d/fresh d/bucket")));
  EXPECT_EQ(crossing({stalled(allreduce("d/fresh"), {0, 3}, 0),  // 0 has not come to anything yet
                      stalled(allreduce("d/bucket"), {0, 1}, 0)}),
            std::pair(Rank{3}, std::string("d/fresh d/bucket")));
}

TEST(Crossing, IsNoneWhereOneRankIsLate) {
  EXPECT_FALSE(crossing({}));
  EXPECT_FALSE(crossing({stalled(allreduce("d/fresh"), {0}, 0)}));
  EXPECT_FALSE(crossing({stalled(allreduce("d/bucket"), {1}, 0)}));
  // This rank is late twice; rank 0 is, twice.
  EXPECT_FALSE(
      crossing({stalled(allreduce("d/bucket"), {1}, 0), stalled(allreduce("d/fresh"), {1}, 0)}));
  EXPECT_FALSE(
      crossing({stalled(allreduce("d/bucket"), {0}, 0), stalled(allreduce("d/fresh"), {0}, 0)}));
  // Two other ranks wait for each other.
  EXPECT_FALSE(
      crossing({stalled(allreduce("d/bucket"), {0}, 0), stalled(allreduce("d/fresh"), {2}, 0)}));
}

TEST(Crossing, LooksAtOneScopeAndOneGroup) {
  RequestSpec elsewhere = allreduce("d/fresh");
  elsewhere.group = 7;
  EXPECT_FALSE(
      crossing({stalled(allreduce("d/bucket"), {1}, 0), stalled(allreduce("e/fresh"), {0}, 0)}));
  EXPECT_FALSE(
      crossing({stalled(allreduce("e/bucket"), {1}, 0), stalled(allreduce("d/fresh"), {0}, 0)}));
  EXPECT_FALSE(crossing({stalled(allreduce("d/bucket"), {1}, 0), stalled(elsewhere, {0}, 0)}));
}

}  // namespace
}  // namespace ciranda
