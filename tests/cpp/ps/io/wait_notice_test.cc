// What could break: a job that stands still without a word, or says so all the
// time.
#include "core/ps/io/wait_notice.h"

#include <gtest/gtest.h>

namespace ciranda::ps {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

TEST(WaitNotice, IsSaidAfterSomeTimeAndThenLessAndLessOften) {
  WaitNotice notice("worker 3");
  const std::uint64_t begun = 100 * kSecond;
  EXPECT_FALSE(notice.words(begun, begun + 5 * kSecond - 1, "server 1"));
  EXPECT_EQ(notice.due_ns(begun), begun + 5 * kSecond);
  EXPECT_EQ(notice.words(begun, begun + 5 * kSecond, "server 1"),
            "worker 3 has waited 5 s for server 1");
  EXPECT_EQ(notice.due_ns(begun), begun + 15 * kSecond);
  EXPECT_FALSE(notice.words(begun, begun + 14 * kSecond, "server 1"));
  EXPECT_EQ(notice.words(begun, begun + 15 * kSecond, "server 1"),
            "worker 3 has waited 15 s for server 1");
  EXPECT_EQ(notice.due_ns(begun), begun + 35 * kSecond);
}

TEST(WaitNotice, WaitsThatAreUsualInAJobAreSoonNotSaid) {
  WaitNotice notice("worker 3");
  int said = 0;
  for (std::uint64_t hour = 0; hour < 3'600; hour += 6) {
    said += notice.words(hour * kSecond, (hour + 6) * kSecond, "server 1").has_value() ? 1 : 0;
  }
  EXPECT_EQ(said, 1);
}

}  // namespace
}  // namespace ciranda::ps
