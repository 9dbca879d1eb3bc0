// What could break: a message that comes back otherwise, or bytes of a stranger that are believed.
#include "core/member/messages.h"

#include <gtest/gtest.h>

#include <vector>

namespace ciranda::member {
namespace {

std::vector<std::byte> raw(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

TEST(MemberMessages, FromARankComeBackAsTheyWere) {
  for (const FromRank& message :
       {FromRank(Ready{}), FromRank(Formed{.epoch = 300, .step = 1ull << 40}), FromRank(AtEnd{}),
        FromRank(AtEnd{.since = 300}), FromRank(Beat{}), FromRank(Died{.who = 9}),
        FromRank(LeftEarly{.who = 9, .epoch = 300, .step = 1ull << 40}),
        FromRank(Unreachable{.who = 9, .epoch = 300})}) {
    const auto decoded = decode_from_rank(encode(message));
    ASSERT_TRUE(decoded.ok()) << decoded.error().text;
    EXPECT_EQ(decoded.value(), message);
  }
}

TEST(MemberMessages, FromTheArbiterComeBackAsTheyWere) {
  for (const FromArbiter& message :
       {FromArbiter(NewEpoch{.number = 3, .planned = true, .members = {1, 5, 300}}),
        FromArbiter(
            NewEpoch{.number = 4, .members = {1, 5}, .hosts = {0, 1}, .meet_at = "[fd00::1]:4000"}),
        FromArbiter(Over{})}) {
    const auto decoded = decode_from_arbiter(encode(message));
    ASSERT_TRUE(decoded.ok()) << decoded.error().text;
    EXPECT_EQ(decoded.value(), message);
  }
}

TEST(MemberMessages, HaveTheBytesThatTheProtocolSays) {
  EXPECT_EQ(encode(FromRank(Ready{})), raw({0}));
  EXPECT_EQ(encode(FromRank(Formed{.epoch = 2, .step = 5})), raw({1, 2, 5}));
  EXPECT_EQ(encode(FromRank(AtEnd{.since = 4})), raw({2, 4}));
  EXPECT_EQ(encode(FromRank(Beat{})), raw({3}));
  EXPECT_EQ(encode(FromRank(Died{.who = 9})), raw({4, 9}));
  EXPECT_EQ(encode(FromRank(LeftEarly{.who = 9, .epoch = 2, .step = 5})), raw({5, 9, 2, 5}));
  EXPECT_EQ(encode(FromRank(Unreachable{.who = 9, .epoch = 2})), raw({6, 9, 2}));
  EXPECT_EQ(encode(FromArbiter(NewEpoch{.number = 7, .planned = true, .members = {4, 2}})),
            raw({0, 7, 1, 2, 4, 2, 0, 0}));
  EXPECT_EQ(encode(FromArbiter(
                NewEpoch{.number = 7, .members = {4, 2}, .hosts = {1, 0}, .meet_at = "a:1"})),
            raw({0, 7, 0, 2, 4, 2, 2, 1, 0, 3, 'a', ':', '1'}));
  EXPECT_EQ(encode(FromArbiter(Over{})), raw({1}));
}

TEST(MemberMessages, BytesThatAreNoMessageAreRefused) {
  for (const auto& bytes :
       {raw({}), raw({4}), raw({4, 0}), raw({5}), raw({5, 0, 1, 1}), raw({5, 1, 0, 1}),
        raw({5, 1, 1}), raw({6}), raw({6, 0, 1}), raw({6, 1, 0}), raw({7}), raw({0, 0}), raw({1}),
        raw({1, 0, 5}), raw({1, 2, 0x80}), raw({2}), raw({3, 0})}) {
    EXPECT_FALSE(decode_from_rank(bytes).ok());
  }
  for (const auto& bytes : {raw({}), raw({2}), raw({0, 0, 0, 1, 1}), raw({0, 1, 2, 1, 1}),
                            raw({0, 1, 0, 0}), raw({0, 1, 0, 1, 0}), raw({0, 1, 0, 2, 1}),
                            raw({1, 1}), raw({0, 1, 0, 1, 1}), raw({0, 1, 0, 1, 1, 0}),
                            raw({0, 1, 0, 2, 1, 2, 1, 0, 0}), raw({0, 1, 0, 1, 1, 0, 2, 'a'})}) {
    EXPECT_FALSE(decode_from_arbiter(bytes).ok());
  }
}

}  // namespace
}  // namespace ciranda::member
