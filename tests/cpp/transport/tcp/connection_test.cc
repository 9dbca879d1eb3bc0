// What could break: a frame is lost or believed too early, or a rank waits for a peer for ever.
#include "core/transport/tcp/connection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "transport/dial/acceptor.h"

namespace ciranda {
namespace {

using test::in_ms;
using test::keys_of;
using test::Rank0;

struct Ends {
  ControlConnection client;
  ControlConnection server;
};

// Both ends of a connection, in clear or through TLS.
class Connected : public ::testing::TestWithParam<bool> {
 protected:
  Ends connect() {
    auto client = rank0_.call(2);
    EXPECT_TRUE(client.ok()) << client.error().text;
    auto server = rank0_.proven();
    EXPECT_TRUE(server.has_value());
    return {ControlConnection(std::move(client).value()), ControlConnection(std::move(*server))};
  }
  Rank0 rank0_{Rank0::Options{.tls = GetParam()}};
};
INSTANTIATE_TEST_SUITE_P(, Connected, ::testing::Bool(),
                         [](const auto& tls) { return tls.param ? "Tls" : "Clear"; });

// The next frame; waits for it.
Result<std::optional<OpenedFrame>> next(ControlConnection& connection) {
  for (;;) {
    auto frame = connection.receive();
    if (!frame.ok() || frame.value().has_value()) return frame;
    if (!wait_readable(connection.fd(), in_ms(5'000)).value()) return frame;
  }
}

TEST_P(Connected, CarriesFramesBothWays) {
  Ends ends = connect();
  EXPECT_EQ(ends.client.peer(), 0);
  EXPECT_EQ(ends.server.peer(), 2);
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const std::vector<std::byte> payload(random() % 50'000, static_cast<std::byte>(seed));
    for (auto* from : {&ends.client, &ends.server}) {
      ControlConnection& to = from == &ends.client ? ends.server : ends.client;
      ASSERT_TRUE(from->send(static_cast<std::uint8_t>(seed), payload).ok());
      const auto frame = next(to);
      ASSERT_TRUE(frame.ok() && frame.value().has_value()) << "seed " << seed;
      ASSERT_EQ(frame.value()->type, seed);
      ASSERT_TRUE(std::ranges::equal(frame.value()->payload, payload)) << "seed " << seed;
    }
  }
}

TEST_P(Connected, KeepsWhatTheSocketDoesNotTake) {
  Ends ends = connect();
  const std::vector<std::byte> large(kSealedPayloadBytesMax, std::byte{1});
  constexpr std::size_t sent = 20;
  for (std::size_t i = 0; i < sent; ++i) ASSERT_TRUE(ends.client.send(1, large).ok());
  EXPECT_GT(ends.client.queued_bytes(), large.size());
  std::size_t received = 0;
  while (received < sent) {
    ASSERT_TRUE(ends.client.flush().ok());
    const auto frame = ends.server.receive();
    ASSERT_TRUE(frame.ok()) << frame.error().text;
    if (frame.value().has_value()) ++received;
  }
  EXPECT_FALSE(ends.client.has_queued());
}

TEST_P(Connected, NamesAPeerThatHungUp) {
  Ends ends = connect();
  { const ControlConnection gone = std::move(ends.client); }
  const auto frame = next(ends.server);
  ASSERT_FALSE(frame.ok());
  EXPECT_EQ(frame.error().code, ErrorCode::kRankLost);
  EXPECT_EQ(frame.error().rank, 2);
  EXPECT_TRUE(frame.error().text.starts_with("rank 2 at 127.0.0.1:")) << frame.error().text;
}

TEST_P(Connected, RefusesBytesThatThePeerDidNotSeal) {
  Ends ends = connect();
  const std::vector<std::byte> forged(64, std::byte{0});
  ASSERT_TRUE(send_some(ends.client.fd(), forged).ok());
  const auto frame = next(ends.server);
  ASSERT_FALSE(frame.ok());
  EXPECT_EQ(frame.error().code, ErrorCode::kMalformed);
  EXPECT_EQ(frame.error().rank, 2);
}

}  // namespace
}  // namespace ciranda
