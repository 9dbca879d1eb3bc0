// What could break: a worker that counts twice, names without end.
#include "core/ps/decide/averages.h"

#include <gtest/gtest.h>

#include <string>

namespace ciranda::ps {
namespace {

TEST(Averages, EachWorkerCountsWithItsLatestValue) {
  Averages averages;
  EXPECT_EQ(averages.add(3, {.name = "loss", .value = 4.0}).value(),
            (Averaged{.mean = 4.0, .workers = 1}));
  EXPECT_EQ(averages.add(0, {.name = "loss", .value = 2.0}).value(),
            (Averaged{.mean = 3.0, .workers = 2}));
  EXPECT_EQ(averages.add(3, {.name = "loss", .value = 6.0}).value(),
            (Averaged{.mean = 4.0, .workers = 2}));
  EXPECT_EQ(averages.add(0, {.name = "other", .value = 1.0}).value(),
            (Averaged{.mean = 1.0, .workers = 1}));
}

TEST(Averages, ANameTooManyIsRefusedAndTheOthersGoOn) {
  Averages averages;
  for (int i = 0; i < 1024; ++i) ASSERT_TRUE(averages.add(0, {.name = std::to_string(i)}).ok());
  EXPECT_EQ(averages.add(0, {.name = "one more"}).error().code, ErrorCode::kLimit);
  EXPECT_TRUE(averages.add(1, {.name = "7"}).ok());
}

}  // namespace
}  // namespace ciranda::ps
