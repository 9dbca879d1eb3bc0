// What could break: an order of the arbiter that is missed, taken for a newer one, or meant for
// others; a launcher that is gone unnoticed.
#include "core/job/member.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>

#include "core/transport/tcp/socket_io.h"

namespace ciranda {
namespace {

class MemberTest : public ::testing::Test {
 protected:
  void say(const member::FromArbiter& message) {
    ASSERT_TRUE(send_packet(arbiter_.get(), member::encode(message), {}).ok());
  }
  member::FromRank heard() {
    std::array<std::byte, 4096> bytes;
    auto packet = receive_packet(arbiter_.get(), bytes);
    EXPECT_TRUE(packet.ok() && packet.value().what == Received::kPacket);
    return member::decode_from_rank(std::span(bytes).first(packet.value().bytes)).value();
  }

  std::array<Fd, 2> sockets_ = make_packet_sockets().value();
  Fd& arbiter_ = sockets_[0];
  Member member_{{.fd = ::dup(sockets_[1].get()), .incarnation = 5}};
};

TEST_F(MemberTest, TheNewestEpochThatListsTheProcessCounts) {
  EXPECT_FALSE(member_.newest().value().epoch.has_value());
  say(member::NewEpoch{.number = 3, .planned = false, .members = {1, 5}});
  say(member::NewEpoch{.number = 4, .planned = true, .members = {5, 7}});
  say(member::NewEpoch{.number = 2, .planned = false, .members = {5}});  // cannot be: ignored
  say(member::NewEpoch{.number = 6, .planned = false, .members = {1, 7}});
  EXPECT_TRUE(member_.wait(10'000).value());
  const Member::Order order = member_.newest().value();
  ASSERT_TRUE(order.epoch.has_value());
  EXPECT_EQ(order.epoch->number, 4U);
  EXPECT_TRUE(order.epoch->planned);
  EXPECT_FALSE(order.over);
  EXPECT_FALSE(member_.wait(0).value());  // all is read
  EXPECT_EQ(member_.newest().value().epoch->number, 4U);
  say(member::Over{});
  EXPECT_TRUE(member_.newest().value().over);
}

TEST_F(MemberTest, TheArbiterHearsWhatTheProcessSays) {
  ASSERT_TRUE(member_.say(member::Ready{}).ok());
  ASSERT_TRUE(member_.say(member::Formed{.epoch = 2, .step = 9}).ok());
  while (heard() != member::FromRank(member::Ready{})) {
  }
  member::FromRank next = heard();
  while (next == member::FromRank(member::Beat{})) next = heard();
  EXPECT_EQ(next, member::FromRank(member::Formed{.epoch = 2, .step = 9}));
}

TEST_F(MemberTest, AGoneLauncherAndBrokenBytesAreErrors) {
  const std::byte nonsense[] = {std::byte{99}, std::byte{1}};
  ASSERT_TRUE(send_packet(arbiter_.get(), nonsense, {}).ok());
  EXPECT_EQ(member_.newest().error().code, ErrorCode::kMalformed);
  arbiter_.reset();
  EXPECT_TRUE(member_.wait(10'000).value());
  EXPECT_EQ(member_.newest().error().code, ErrorCode::kRankLost);
  EXPECT_EQ(member_.say(member::Ready{}).error().code, ErrorCode::kRankLost);
}

}  // namespace
}  // namespace ciranda
