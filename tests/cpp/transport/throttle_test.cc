// What could break: strangers come as often as they like, or ranks do not get in.
#include "core/transport/throttle.h"

#include <gtest/gtest.h>

namespace ciranda {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kNow = 5 * kSecond;

int admitted(Throttle& throttle, Throttle::Source source, std::uint64_t now_ns, int times = 100) {
  int count = 0;
  for (int i = 0; i < times; ++i) count += throttle.admit(source, now_ns) ? 1 : 0;
  return count;
}

TEST(Throttle, LetsSomeInAtOnceAndThenAtAPace) {
  Throttle throttle(20, 10);
  EXPECT_EQ(admitted(throttle, 1, kNow), 20);
  EXPECT_EQ(admitted(throttle, 1, kNow + kSecond / 2), 5);
  EXPECT_EQ(admitted(throttle, 1, kNow + kSecond), 5);
  EXPECT_EQ(admitted(throttle, 1, kNow + 100 * kSecond), 20) << "no more than at once";
}

TEST(Throttle, OneSourceTakesNothingFromAnother) {
  Throttle throttle(20, 10);
  EXPECT_EQ(admitted(throttle, 1, kNow), 20);
  EXPECT_EQ(admitted(throttle, 2, kNow), 20);
}

TEST(Throttle, WhoMeantWellIsNotCounted) {
  Throttle throttle(20, 10);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(throttle.admit(1, kNow));
    throttle.give_back(1);
  }
}

TEST(Throttle, ForgetsAllWhenThereAreTooMany) {
  Throttle throttle(1, 1);
  for (Throttle::Source source = 0; source < Throttle::kSourcesMax; ++source) {
    ASSERT_TRUE(throttle.admit(source, kNow));
  }
  EXPECT_FALSE(throttle.admit(0, kNow));
  EXPECT_TRUE(throttle.admit(Throttle::kSourcesMax, kNow));
  EXPECT_TRUE(throttle.admit(0, kNow));
  throttle.give_back(77);  // forgotten
}

}  // namespace
}  // namespace ciranda
