// What could break: an error that is lost, or a value that is read where there is none.
#include "core/base/result.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>

namespace ciranda {
namespace {

Error late() {
  return {.code = ErrorCode::kTimeout, .text = "late", .rank = 3, .tensor = "w"};
}

TEST(Result, HoldsAValue) {
  const Result<int> result(7);
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(static_cast<bool>(result));
  EXPECT_EQ(result.value(), 7);
}

TEST(Result, HoldsAnErrorWithAllItIsAbout) {
  const Result<int> result(late());
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kTimeout);
  EXPECT_EQ(result.error().text, "late");
  EXPECT_EQ(result.error().rank, 3);
  EXPECT_EQ(result.error().tensor, "w");
}

TEST(Result, GivesAwayAValueThatOnlyMoves) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(5));
  const std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 5);
}

TEST(Result, TellsAnErrorFromAValueOfTheSameType) {
  const Result<std::string> value(std::string("fine"));
  const Result<std::string> error(late());
  EXPECT_TRUE(value.ok());
  EXPECT_FALSE(error.ok());
}

TEST(Status, IsFineWithoutAnError) {
  EXPECT_TRUE(Status().ok());
  EXPECT_FALSE(Status(late()).ok());
}

TEST(Try, ReturnsTheFirstErrorAndSkipsTheRest) {
  int reached = 0;
  const auto run = [&](bool fails) -> Status {
    CIRANDA_TRY(fails ? Status(late()) : Status());
    ++reached;
    return {};
  };
  EXPECT_EQ(run(true).error().text, "late");
  EXPECT_EQ(reached, 0);
  EXPECT_TRUE(run(false).ok());
  EXPECT_EQ(reached, 1);
}

TEST(Error, FromErrnoKeepsTheNumberAndItsText) {
  const Error error = Error::from_errno("open /x", ENOENT);
  EXPECT_EQ(error.code, ErrorCode::kSystem);
  EXPECT_EQ(error.sys_errno, ENOENT);
  EXPECT_EQ(error.text, "open /x: No such file or directory");
}

TEST(ResultDeathTest, RefusesTheValueOfAnError) {
  const Result<int> result(late());
  EXPECT_DEATH(static_cast<void>(result.value()), "broken invariant");
  const Result<int> value(1);
  EXPECT_DEATH(static_cast<void>(value.error()), "broken invariant");
}

}  // namespace
}  // namespace ciranda
