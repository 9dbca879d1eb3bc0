// What could break: the larger half of a job that is given up, or two halves that wait for each
// other.
#include "core/member/suspicions.h"

#include <gtest/gtest.h>

#include <map>

namespace ciranda::member {
namespace {

using Verdict = Suspicions::Verdict;

TEST(Suspicions, WaitForTheGraceOfTheFirst) {
  Suspicions suspicions(100);
  EXPECT_FALSE(suspicions.deadline());
  suspicions.add(/*by=*/0, /*whom=*/1, 50);
  suspicions.add(1, 0, 90);
  EXPECT_EQ(suspicions.deadline(), 150U);
  EXPECT_TRUE(suspicions.judge({{0, 1}, {1, 1}}));
  EXPECT_FALSE(suspicions.deadline()) << "there is one verdict";
  suspicions.add(0, 2, 200);
  EXPECT_FALSE(suspicions.deadline()) << "in one epoch";
  suspicions.clear();
  suspicions.add(0, 2, 300);
  EXPECT_EQ(suspicions.deadline(), 400U);
}

TEST(Suspicions, GiveUpTheHostThatIsCutOffFromMostMembers) {
  const std::map<HostNumber, int> members = {{0, 2}, {1, 4}, {2, 3}};
  Suspicions of_one(0);
  of_one.add(1, 0, 0);
  of_one.add(1, 2, 0);
  EXPECT_EQ(of_one.judge(members), (Verdict{.host = 1, .by = 0})) << "5 others cannot reach it";
  Suspicions of_two(0);
  of_two.add(2, 1, 0);
  EXPECT_EQ(of_two.judge(members), (Verdict{.host = 2, .by = 1}))
      << "the smaller one, whoever has said so";
}

TEST(Suspicions, GiveUpTheLaterOfTwoHostsThatAreAlike) {
  for (const bool turned : {false, true}) {
    Suspicions suspicions(0);
    suspicions.add(turned ? 4 : 3, turned ? 3 : 4, 0);
    EXPECT_EQ(suspicions.judge({{3, 2}, {4, 2}}), (Verdict{.host = 4, .by = 3}));
  }
}

TEST(Suspicions, GiveUpNoHostWhoseMembersAreGone) {
  Suspicions suspicions(0);
  suspicions.add(0, 1, 0);
  EXPECT_FALSE(suspicions.judge({{0, 2}, {2, 2}}));
}

}  // namespace
}  // namespace ciranda::member
