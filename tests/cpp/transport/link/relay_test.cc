// The one order of all hosts: breaks when two hosts see different orders, or a failure stays home.
#include "core/transport/link/relay.h"

#include <algorithm>
#include <functional>
#include <string>

#include "transport/join/meeting.h"

namespace ciranda::testing {
namespace {

// Hosts 0, 1, 2 with ranks 0 | 1 2 | 3, and what arrived at each.
class Relays : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<RemoteMesh> meshes = met({1, 2, 1}).remotes;
    hosts_ = meshes[0].hosts;
    for (const Rank first : {0, 1, 3}) {
      RemoteMesh& mesh = meshes[static_cast<std::size_t>(first)];
      relays_.push_back(std::make_unique<Relay>(std::move(mesh.control), hosts_, mesh.host));
    }
    arrived_.resize(3);
  }

  Relay::Take take(std::size_t host) {
    return [this, host](Rank from, std::span<const std::byte> frame) {
      arrived_[host].push_back(
          std::to_string(from) + ":" +
          std::string(reinterpret_cast<const char*>(frame.data()), frame.size()));
      return Status();
    };
  }

  // Until `done`, or for two seconds.
  void advance_all(const std::function<bool()>& done, std::size_t frames_max = SIZE_MAX) {
    repeat_until(done, [&] {
      for (std::size_t host = 0; host < 3; ++host) {
        ASSERT_TRUE(relays_[host]->advance(take(host), frames_max).ok());
      }
    });
    EXPECT_TRUE(done());
  }

  // Until `done`, or for two seconds.
  static void repeat_until(const std::function<bool()>& done, const std::function<void()>& step) {
    for (int i = 0; i < 2000 && !done(); ++i) {
      step();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  // The first error of host 0's, within two seconds.
  Result<bool> error_at_host_0() {
    Result<bool> moved = true;
    repeat_until([&] { return !moved.ok(); },
                 [&] { moved = relays_[0]->advance(take(0), SIZE_MAX); });
    return moved;
  }

  Hosts hosts_;
  std::vector<std::unique_ptr<Relay>> relays_;
  std::vector<std::vector<std::string>> arrived_;
};

TEST_F(Relays, AreAStar) {
  std::vector<std::string> from_1, from_2, from_0;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(relays_[2]->send(3, bytes_of("c" + std::to_string(i))).ok());
    ASSERT_TRUE(relays_[1]->send(1 + i % 2, bytes_of("b" + std::to_string(i))).ok());
    ASSERT_TRUE(relays_[0]->send(0, bytes_of("a" + std::to_string(i))).ok());
    from_0.push_back("0:a" + std::to_string(i));
    from_1.push_back(std::to_string(1 + i % 2) + ":b" + std::to_string(i));
    from_2.push_back("3:c" + std::to_string(i));
  }
  advance_all([&] {
    return arrived_[0].size() == 200 && arrived_[1].size() == 100 && arrived_[2].size() == 100;
  });
  EXPECT_EQ(arrived_[1], from_0);
  EXPECT_EQ(arrived_[2], from_0);
  // Of each host in its order.
  std::stable_sort(arrived_[0].begin(), arrived_[0].end(),
                   [](const auto& a, const auto& b) { return a[2] < b[2]; });
  from_1.insert(from_1.end(), from_2.begin(), from_2.end());
  EXPECT_EQ(arrived_[0], from_1);
  EXPECT_TRUE(relays_[0]->idle());
}

TEST_F(Relays, TakeWhatThereIsRoomFor) {
  for (const char* text : {"x", "y"}) ASSERT_TRUE(relays_[1]->send(2, bytes_of(text)).ok());
  advance_all([&] { return arrived_[0].size() == 1; }, /*frames_max=*/1);
  advance_all([&] { return true; }, /*frames_max=*/0);
  EXPECT_EQ(arrived_[0].size(), 1u);
  advance_all([&] { return arrived_[0].size() == 2; });
  EXPECT_EQ(arrived_[0], (std::vector<std::string>{"2:x", "2:y"}));
}

TEST_F(Relays, AFailureReachesEveryHost) {
  relays_[1]->tell_failure({.code = ErrorCode::kRankLost, .text = "rank 2 was lost", .rank = 2});
  advance_all([&] { return relays_[0]->reported_failure() && relays_[2]->reported_failure(); });
  for (const std::size_t host : {0u, 2u}) {
    EXPECT_EQ(relays_[host]->reported_failure()->text, "rank 2 was lost");
    EXPECT_EQ(relays_[host]->reported_failure()->rank, 2);
    EXPECT_EQ(relays_[host]->reported_failure()->code, ErrorCode::kRankLost);
  }
}

TEST_F(Relays, NobodySpeaksForAnotherHost) {
  ASSERT_TRUE(relays_[2]->send(1, bytes_of("I am rank 1")).ok());
  const Result<bool> moved = error_at_host_0();
  ASSERT_FALSE(moved.ok());
  EXPECT_EQ(moved.error().code, ErrorCode::kMalformed);
  EXPECT_EQ(relays_[0]->lost_host(), 2);
  EXPECT_TRUE(arrived_[0].empty());
}

TEST_F(Relays, ALostHostIsNamedAndItsLastWordsAreHeard) {
  ASSERT_TRUE(relays_[2]->send(3, bytes_of("goodbye")).ok());
  relays_[2].reset();
  const Result<bool> moved = error_at_host_0();
  ASSERT_FALSE(moved.ok());
  EXPECT_EQ(moved.error().rank, 3);
  EXPECT_EQ(relays_[0]->lost_host(), 2);
  relays_[0]->take_last_words(2, take(0));
  EXPECT_EQ(arrived_[0], (std::vector<std::string>{"3:goodbye"}));
  relays_[0]->part_with(2);
  EXPECT_TRUE(relays_[0]->advance(take(0), SIZE_MAX).ok());
  EXPECT_FALSE(relays_[0]->alone());
  // The others still get what host 0 sends.
  ASSERT_TRUE(relays_[0]->send(0, bytes_of("on")).ok());
  repeat_until([&] { return !arrived_[1].empty(); },
               [&] { ASSERT_TRUE(relays_[1]->advance(take(1), SIZE_MAX).ok()); });
  EXPECT_EQ(arrived_[1], (std::vector<std::string>{"0:on"}));
}

TEST_F(Relays, ALostHostKeepsNothingFromTheOthers) {
  relays_[1].reset();
  Status sent;
  std::size_t frames = 0;
  repeat_until([&] { return !sent.ok(); },
               [&] {
                 sent = relays_[0]->send(0, bytes_of("on"));
                 ++frames;
               });
  ASSERT_FALSE(sent.ok());
  EXPECT_EQ(sent.error().rank, 1);
  EXPECT_EQ(relays_[0]->lost_host(), 1);
  repeat_until([&] { return arrived_[2].size() == frames; },
               [&] { ASSERT_TRUE(relays_[2]->advance(take(2), SIZE_MAX).ok()); });
  EXPECT_EQ(arrived_[2].size(), frames);
}

TEST_F(Relays, LastWordsAreHeardThatNobodyHasTakenYet) {
  for (const char* text : {"good", "bye"}) ASSERT_TRUE(relays_[2]->send(3, bytes_of(text)).ok());
  relays_[2].reset();
  repeat_until([&] { return arrived_[0].size() == 2; },
               [&] { relays_[0]->take_last_words(2, take(0)); });
  EXPECT_EQ(arrived_[0], (std::vector<std::string>{"3:good", "3:bye"}));
}

TEST_F(Relays, AHostThatTakesNothingLeavesNoRoom) {
  const std::vector<std::byte> frame(std::size_t{1} << 18);
  int frames = 0;
  for (; frames < 1000 && relays_[0]->has_room(); ++frames) {
    ASSERT_TRUE(relays_[0]->send(0, frame).ok());
  }
  ASSERT_FALSE(relays_[0]->has_room());
  EXPECT_FALSE(relays_[0]->idle());
  advance_all([&] { return relays_[0]->idle(); });
  EXPECT_TRUE(relays_[0]->has_room());
}

}  // namespace
}  // namespace ciranda::testing
