// The one order of all hosts: breaks when two hosts see different orders, or a failure stays home.
#include "core/transport/relay.h"

#include <functional>
#include <string>

#include "transport/meeting.h"

namespace ciranda::testing {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Hosts 0, 1, 2 with ranks 0 | 1 2 | 3, and what each was delivered.
class Relays : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<RemoteMesh> meshes = met({1, 2, 1});
    hosts_ = meshes[0].hosts;
    for (const Rank first : {0, 1, 3}) {
      RemoteMesh& mesh = meshes[static_cast<std::size_t>(first)];
      relays_.push_back(std::make_unique<Relay>(std::move(mesh.control), hosts_, mesh.host));
    }
    delivered_.resize(3);
  }

  Result<bool> advance(std::size_t host) {
    return relays_[host]->advance([&](Rank from, std::span<const std::byte> frame) {
      if (delivered_[host].size() >= room_) return false;
      delivered_[host].push_back(
          std::to_string(from) + ":" +
          std::string(reinterpret_cast<const char*>(frame.data()), frame.size()));
      return true;
    });
  }

  // Until `done`, or for two seconds.
  void advance_all(const std::function<bool()>& done) {
    for (int i = 0; i < 2000 && !done(); ++i) {
      for (std::size_t host = 0; host < 3; ++host) ASSERT_TRUE(advance(host).ok());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(done());
  }

  Hosts hosts_;
  std::vector<std::unique_ptr<Relay>> relays_;
  std::vector<std::vector<std::string>> delivered_;
  std::size_t room_ = SIZE_MAX;
};

TEST_F(Relays, AllHostsSeeOneOrder) {
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(relays_[2]->send(3, bytes_of("c" + std::to_string(i))).ok());
    ASSERT_TRUE(relays_[1]->send(1 + i % 2, bytes_of("b" + std::to_string(i))).ok());
    ASSERT_TRUE(relays_[0]->send(0, bytes_of("a" + std::to_string(i))).ok());
    if (i % 7 == 0) {
      ASSERT_TRUE(advance(0).ok());
    }
  }
  advance_all([&] {
    return delivered_[0].size() == 300 && delivered_[1].size() == 300 &&
           delivered_[2].size() == 300;
  });
  EXPECT_EQ(delivered_[1], delivered_[0]);
  EXPECT_EQ(delivered_[2], delivered_[0]);
  EXPECT_TRUE(relays_[0]->idle());
}

TEST_F(Relays, WaitForRoom) {
  room_ = 1;
  for (const char* text : {"x", "y"}) ASSERT_TRUE(relays_[1]->send(2, bytes_of(text)).ok());
  advance_all([&] { return delivered_[2].size() == 1; });
  room_ = 2;
  advance_all([&] { return delivered_[1].size() == 2 && delivered_[2].size() == 2; });
  EXPECT_EQ(delivered_[2], (std::vector<std::string>{"2:x", "2:y"}));
}

TEST_F(Relays, AFailureReachesEveryHost) {
  relays_[1]->tell_failure({.code = ErrorCode::kRankLost, .text = "rank 2 was lost", .rank = 2});
  advance_all([&] { return relays_[0]->told_failure() && relays_[2]->told_failure(); });
  for (const std::size_t host : {0u, 2u}) {
    EXPECT_EQ(relays_[host]->told_failure()->text, "rank 2 was lost");
    EXPECT_EQ(relays_[host]->told_failure()->rank, 2);
    EXPECT_EQ(relays_[host]->told_failure()->code, ErrorCode::kRankLost);
  }
}

TEST_F(Relays, NobodySpeaksForAnotherHost) {
  ASSERT_TRUE(relays_[2]->send(1, bytes_of("I am rank 1")).ok());
  Result<bool> moved = false;
  for (int i = 0; i < 2000 && moved.ok(); ++i) {
    moved = advance(0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_FALSE(moved.ok());
  EXPECT_EQ(moved.error().code, ErrorCode::kMalformed);
  EXPECT_EQ(relays_[0]->lost_host(), 2);
  EXPECT_TRUE(delivered_[0].empty());
}

TEST_F(Relays, ALostHostIsNamedAndItsLastWordsAreHeard) {
  ASSERT_TRUE(relays_[2]->send(3, bytes_of("goodbye")).ok());
  relays_[2].reset();
  Result<bool> moved = true;
  for (int i = 0; i < 2000 && moved.ok(); ++i) {
    moved = advance(0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_FALSE(moved.ok());
  EXPECT_EQ(moved.error().rank, 3);
  EXPECT_EQ(relays_[0]->lost_host(), 2);
  relays_[0]->take_last_words(2, [&](Rank, std::span<const std::byte> frame) {
    delivered_[0].emplace_back(reinterpret_cast<const char*>(frame.data()), frame.size());
    return true;
  });
  ASSERT_FALSE(delivered_[0].empty());
  EXPECT_NE(delivered_[0].back().find("goodbye"), std::string::npos);
  relays_[0]->part_with(2);
  EXPECT_TRUE(advance(0).ok());
  EXPECT_FALSE(relays_[0]->alone());
}

}  // namespace
}  // namespace ciranda::testing
