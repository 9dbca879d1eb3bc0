// The one order of all hosts: breaks when two hosts see different orders, or a frame is lost on its
// way. What is aggregated is tested in negotiate/aggregator_test.cc; here frames travel.
#include "core/engine/carrier.h"

#include <functional>
#include <string>

#include "transport/join/meeting.h"

namespace ciranda::testing {
namespace {

constexpr std::uint64_t kPatienceNs = 1'000'000'000;

// Hosts 0, 1, 2 with ranks 0 | 1 2 | 3, and what each was delivered.
class Carriers : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<RemoteMesh> meshes = met({1, 2, 1}).remotes;
    hosts_ = meshes[0].hosts;
    for (const Rank first : {0, 1, 3}) {
      RemoteMesh& mesh = meshes[static_cast<std::size_t>(first)];
      negotiators_.push_back(std::make_unique<Negotiator>(
          Negotiator::Options{.size = 4, .hosts = hosts_, .host = mesh.host}));
      carriers_.push_back(std::make_unique<Carrier>(std::move(mesh.control), hosts_, mesh.host,
                                                    *negotiators_.back(), kPatienceNs));
    }
    delivered_.resize(3);
  }

  Carrier::Deliver deliver(std::size_t host) {
    return [this, host](Rank from, std::span<const std::byte> frame) {
      if (delivered_[host].size() >= room_) return false;
      delivered_[host].push_back(
          std::to_string(from) + ":" +
          std::string(reinterpret_cast<const char*>(frame.data()), frame.size()));
      return true;
    };
  }

  Result<bool> advance(std::size_t host) {
    return carriers_[host]->advance(deliver(host), /*now_ns=*/0, /*caught_up=*/true);
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
  std::vector<std::unique_ptr<Negotiator>> negotiators_;
  std::vector<std::unique_ptr<Carrier>> carriers_;
  std::vector<std::vector<std::string>> delivered_;
  std::size_t room_ = SIZE_MAX;
};

TEST_F(Carriers, BringAllHostsOneOrder) {
  for (int i = 0; i < 100; ++i) {
    carriers_[2]->submit(3, bytes_of("c" + std::to_string(i)), 0);
    carriers_[1]->submit(1 + i % 2, bytes_of("b" + std::to_string(i)), 0);
    carriers_[0]->submit(0, bytes_of("a" + std::to_string(i)), 0);
    if (i % 7 == 0) {
      ASSERT_TRUE(advance(0).ok());
    }
    if (i % 5 == 0) {
      ASSERT_TRUE(advance(1).ok());
    }
  }
  advance_all([&] {
    return delivered_[0].size() == 300 && delivered_[1].size() == 300 &&
           delivered_[2].size() == 300;
  });
  EXPECT_EQ(delivered_[1], delivered_[0]);
  EXPECT_EQ(delivered_[2], delivered_[0]);
  for (const auto& carrier : carriers_) EXPECT_TRUE(carrier->idle());
}

TEST_F(Carriers, WaitForRoom) {
  room_ = 1;
  for (const char* text : {"x", "y"}) carriers_[1]->submit(2, bytes_of(text), 0);
  advance_all([&] { return delivered_[2].size() == 1; });
  EXPECT_FALSE(carriers_[2]->idle() && delivered_[2].size() == 2);
  room_ = 2;
  advance_all([&] { return delivered_[1].size() == 2 && delivered_[2].size() == 2; });
  EXPECT_EQ(delivered_[2], (std::vector<std::string>{"2:x", "2:y"}));
}

TEST_F(Carriers, AHostThatReadsNothingIsWaitedFor) {
  const std::string large(kFrameBytesMax, 'x');
  for (int i = 0; i < 100; ++i) {
    carriers_[0]->submit(0, bytes_of(large), 0);
    ASSERT_TRUE(advance(0).ok());
    ASSERT_TRUE(advance(1).ok());
  }
  EXPECT_FALSE(carriers_[0]->idle());
  carriers_[1]->submit(2, bytes_of("last"), 0);
  advance_all([&] { return delivered_[1].size() == 101 && delivered_[2].size() == 101; });
  EXPECT_EQ(delivered_[2], delivered_[0]);
  EXPECT_EQ(delivered_[2].back(), "2:last");
}

TEST_F(Carriers, LastWordsAreDeliveredInOrder) {
  carriers_[2]->submit(3, bytes_of("goodbye"), 0);
  ASSERT_TRUE(advance(2).ok());
  carriers_[2].reset();
  Result<bool> moved = true;
  for (int i = 0; i < 2000 && moved.ok(); ++i) {
    moved = advance(0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_FALSE(moved.ok());
  EXPECT_EQ(carriers_[0]->lost_host(), 2);
  carriers_[0]->take_last_words(2, deliver(0), 0);
  EXPECT_EQ(delivered_[0], (std::vector<std::string>{"3:goodbye"}));
  carriers_[0]->part_with(2);
  EXPECT_TRUE(advance(0).ok());
}

}  // namespace
}  // namespace ciranda::testing
