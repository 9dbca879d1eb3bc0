// What could break: a job that fails for ever, or one that ends because many ranks were lost at
// once.
#include "core/member/futility.h"

#include <gtest/gtest.h>

namespace ciranda::member {
namespace {

TEST(Futility, ElevenStartsInARowThatFailAreTooMany) {
  Futility job;
  for (int start = 0; start < 10; ++start) EXPECT_FALSE(job.start_fails());
  job.formed(0);
  for (int start = 0; start < 10; ++start) EXPECT_FALSE(job.start_fails());
  EXPECT_TRUE(job.start_fails());
}

TEST(Futility, AThirdErrorAtOneStepIsTooMuch) {
  Futility job;
  for (const bool too_many : {false, false, true}) {
    job.formed(7);
    job.lose();
    EXPECT_EQ(job.step_fails(/*by_error=*/true), too_many);
  }
}

TEST(Futility, AnEleventhLossAtOneStepIsTooMuchUnlessRanksAreLostTogether) {
  Futility job;
  job.formed(7);
  for (int together = 0; together < 20; ++together) {
    job.lose();
    EXPECT_FALSE(job.step_fails(/*by_error=*/false));
  }
  for (int loss = 2; loss <= 11; ++loss) {
    job.formed(7);
    job.lose();
    EXPECT_EQ(job.step_fails(/*by_error=*/false), loss == 11);
  }
}

TEST(Futility, ANewStepForgivesAll) {
  Futility job;
  for (std::uint64_t step = 1; step < 50; ++step) {
    job.formed(step);
    job.lose();
    EXPECT_FALSE(job.step_fails(/*by_error=*/true));
  }
}

}  // namespace
}  // namespace ciranda::member
