// What could break: a broken invariant that goes on.
#include "core/base/assert.h"

#include <gtest/gtest.h>

namespace {

TEST(AssertDeathTest, NamesTheBrokenInvariantAndAborts) {
  const int chunks = 3;
  EXPECT_DEATH(CIRANDA_ASSERT(chunks == 4), "broken invariant: chunks == 4 at .*assert_test.cc:");
}

TEST(AssertDeathTest, AbortsInABranchThatCannotBe) {
  EXPECT_DEATH(CIRANDA_UNREACHABLE(), "unreachable branch");
}

TEST(Assert, EvaluatesItsConditionOnce) {
  int calls = 0;
  CIRANDA_ASSERT(++calls > 0);
  EXPECT_EQ(calls, 1);
}

}  // namespace
