// What could break: a rank that is counted twice or forgotten, a roll of another job's size.
#include "core/wire/roll.h"

#include <gtest/gtest.h>

namespace ciranda {
namespace {

// One rank on each host.
Introduction rank(Rank number, int size = 3) {
  return {.rank = number,
          .size = size,
          .host = number,
          .hosts = size,
          .local_rank = 0,
          .local_size = 1,
          .settings = "A=1\n",
          .addresses = {{"192.0.2.1", 4000}}};
}

TEST(Roll, ComesBackAsItWasWithoutSettings) {
  const auto roll = make_roll({std::byte{7}}, {rank(0), rank(1), rank(2)});
  ASSERT_TRUE(roll.ok());
  std::vector<std::byte> bytes;
  encode(roll.value(), bytes);
  const auto back = decode_roll_of(bytes, 3);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back.value().meeting, roll.value().meeting);
  EXPECT_EQ(back.value().ranks, roll.value().ranks);
  EXPECT_EQ(back.value().ranks[1].settings, "");
  EXPECT_EQ(back.value().hosts, (Hosts{{0}, {1}, {2}}));
}

TEST(Roll, IsRefusedWhenCutOrOfAnotherSize) {
  std::vector<std::byte> bytes;
  encode(make_roll({}, {rank(0), rank(1), rank(2)}).value(), bytes);
  EXPECT_EQ(decode_roll_of(bytes, 4).error().code, ErrorCode::kMalformed);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(decode_roll_of(std::span(bytes).first(cut), 3).ok());
  }
}

TEST(RollCall, KnowsWhoIsMissing) {
  RollCall call(3);
  const std::vector<Introduction> first = {rank(0), rank(2)};
  ASSERT_TRUE(call.enter(first).ok());
  EXPECT_EQ(call.missing(), std::vector<Rank>{1});
  EXPECT_FALSE(call.is_complete());
  const std::vector<Introduction> second = {rank(1)};
  ASSERT_TRUE(call.enter(second).ok());
  EXPECT_TRUE(call.is_complete());
}

TEST(RollCall, ARankComesOnceUnlessItWasStruck) {
  RollCall call(3);
  const std::vector<Introduction> one = {rank(1)};
  ASSERT_TRUE(call.enter(one).ok());
  EXPECT_NE(call.enter(one).error().text.find("start every rank once"), std::string::npos);
  const std::vector<Rank> ranks = {1};
  call.strike(ranks);
  EXPECT_EQ(call.missing(), (std::vector<Rank>{0, 1, 2}));
  EXPECT_TRUE(call.enter(one).ok());
}

TEST(RollCall, ARankOfALargerJobIsNone) {
  const std::vector<Introduction> foreign = {rank(3, 4)};
  const Status refused = RollCall(3).enter(foreign);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().text.find("none of this job's 3 ranks"), std::string::npos);
}

}  // namespace
}  // namespace ciranda
