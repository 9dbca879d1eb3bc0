// What could break: strangers come as often as they like, or who does not count is counted.
#include "core/transport/dial/throttle.h"

#include <gtest/gtest.h>

namespace ciranda {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kNow = 5 * kSecond;

int admitted(Throttle& throttle, std::uint64_t now_ns, int times = 100) {
  int count = 0;
  for (int i = 0; i < times; ++i) count += throttle.admit(now_ns) ? 1 : 0;
  return count;
}

TEST(Throttle, LetsSomeInAtOnceAndThenAtAPace) {
  Throttle throttle(20, 10);
  EXPECT_EQ(admitted(throttle, kNow), 20);
  EXPECT_EQ(admitted(throttle, kNow + kSecond / 2), 5);
  EXPECT_EQ(admitted(throttle, kNow + kSecond), 5);
  EXPECT_EQ(admitted(throttle, kNow + 100 * kSecond), 20) << "no more than at once";
}

TEST(Throttle, ATurnGivenBackIsNotCounted) {
  Throttle throttle(20, 10);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(throttle.admit(kNow));
    throttle.give_back();
  }
}

}  // namespace
}  // namespace ciranda
