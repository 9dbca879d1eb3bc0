// What could break: a network that is kinder than a real one, or that loses bytes where a real one
// would not. The tests of negotiation stand on it.
#include "sim/network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

namespace ciranda {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

std::vector<SimDelivery> run(SimNetwork& network) {
  std::vector<SimDelivery> all;
  while (network.step(all)) {
  }
  return all;
}

// "0:hello 1:lost" for one rank, in order.
std::string seen_by(Rank rank, const std::vector<SimDelivery>& deliveries) {
  std::string text;
  for (const SimDelivery& delivery : deliveries) {
    if (delivery.to != rank) continue;
    text += (text.empty() ? "" : " ") + std::to_string(delivery.from) + ":";
    if (delivery.kind == SimDelivery::Kind::kLost) text += "lost";
    for (const std::byte byte : delivery.frame) text.push_back(static_cast<char>(byte));
  }
  return text;
}

class SimNetworkTest : public ::testing::TestWithParam<std::size_t> {
 protected:
  SimOptions options(int size, std::uint64_t seed) const {
    return {.size = size, .seed = seed, .piece_bytes_max = GetParam()};
  }
};
INSTANTIATE_TEST_SUITE_P(Pieces, SimNetworkTest, ::testing::Values(1, 7, 1 << 20));

TEST_P(SimNetworkTest, ShowsEveryRankTheSameOrder) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SimNetwork network(options(4, seed));
    for (const char* text : {"first", "second", "third"})
      for (Rank rank = 0; rank < 4; ++rank) network.send(rank, bytes_of(text));
    const auto deliveries = run(network);
    EXPECT_EQ(deliveries.size(), 48u);
    for (Rank rank = 1; rank < 4; ++rank)
      EXPECT_EQ(seen_by(rank, deliveries), seen_by(0, deliveries));
    EXPECT_TRUE(network.idle());
  }
}

TEST_P(SimNetworkTest, KeepsTheOrderOfOneSender) {
  SimNetwork network(options(3, 9));
  std::string expected;
  for (int i = 0; i < 20; ++i) {
    network.send(1, bytes_of(std::to_string(i)));
    expected += (i > 0 ? " 1:" : "1:") + std::to_string(i);
  }
  EXPECT_EQ(seen_by(2, run(network)), expected);
}

TEST_P(SimNetworkTest, TellsTheOthersOfACrash) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SimNetwork network(options(3, seed));
    network.send(2, bytes_of("whole"));
    std::vector<SimDelivery> deliveries;
    for (int i = 0; i < 4; ++i) network.step(deliveries);
    network.crash(2);
    for (const SimDelivery& delivery : run(network)) deliveries.push_back(delivery);
    const std::string seen = seen_by(0, deliveries);
    EXPECT_TRUE(seen == "2:lost" || seen == "2:whole 2:lost") << seen;
    EXPECT_EQ(seen_by(1, deliveries), seen);
    EXPECT_FALSE(network.running(2));
  }
}

TEST_P(SimNetworkTest, LosesTheSequencerWithRankZero) {
  SimNetwork network(options(3, 1));
  network.send(1, bytes_of("too late"));
  network.crash(0);
  const auto deliveries = run(network);
  EXPECT_EQ(seen_by(0, deliveries), "");
  EXPECT_EQ(seen_by(1, deliveries), "0:lost");
  EXPECT_EQ(seen_by(2, deliveries), "0:lost");
}

TEST_P(SimNetworkTest, BreaksACutLinkAtBothEnds) {
  SimNetwork network(options(3, 2));
  network.cut(1);
  network.send(1, bytes_of("into the void"));
  const auto deliveries = run(network);
  EXPECT_EQ(seen_by(0, deliveries), "1:lost");
  EXPECT_EQ(seen_by(2, deliveries), "1:lost");
  EXPECT_EQ(seen_by(1, deliveries), "0:lost");
}

TEST_P(SimNetworkTest, TakesAFinishedRankForNoFailure) {
  SimNetwork network(options(2, 3));
  network.send(1, bytes_of("bye"));
  network.finish(1);
  EXPECT_EQ(seen_by(0, run(network)), "1:bye");
  network.crash(1);
  EXPECT_EQ(run(network).size(), 0u);
}

TEST_P(SimNetworkTest, KeepsWhatArrivesWhileARankIsPaused) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SimNetwork network(options(2, seed));
    network.send(0, bytes_of("a"));
    std::vector<SimDelivery> deliveries;
    network.step(deliveries);
    network.pause(1);
    network.send(0, bytes_of("b"));
    for (const SimDelivery& delivery : run(network)) deliveries.push_back(delivery);
    network.resume(1);
    network.send(0, bytes_of("c"));
    for (const SimDelivery& delivery : run(network)) deliveries.push_back(delivery);
    EXPECT_EQ(seen_by(0, deliveries), "0:a 0:b 0:c");
    EXPECT_EQ(seen_by(1, deliveries), "0:a 0:b 0:c");
  }
}

TEST(SimNetwork, RunsTheSameForTheSameSeedAndOtherwiseForAnother) {
  std::map<std::string, int> orders;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::string seen[2];
    for (std::string& text : seen) {
      SimNetwork network({.size = 3, .seed = seed});
      for (Rank rank = 0; rank < 3; ++rank) network.send(rank, bytes_of("x"));
      text = seen_by(0, run(network));
    }
    EXPECT_EQ(seen[0], seen[1]);
    ++orders[seen[0]];
  }
  EXPECT_GT(orders.size(), 2u);
}

TEST(SimNetwork, LetsVirtualTimePassWithoutWaiting) {
  SimNetwork network({.size = 2, .delay_ticks_max = 1'000'000'000});
  network.send(0, bytes_of("x"));
  run(network);
  EXPECT_GT(network.now(), 0u);
}

}  // namespace
}  // namespace ciranda
