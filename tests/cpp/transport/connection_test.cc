// What could break: a frame is lost or believed too early, or a rank waits for a peer for ever.
#include "core/transport/connection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "transport/acceptor.h"

namespace ciranda {
namespace {

using test::in_ms;
using test::keys_of;
using test::Rank0;

struct Ends {
  ControlConnection client;
  ControlConnection server;
};

Ends connect(Rank0& rank0) {
  auto client = rank0.call(2);
  EXPECT_TRUE(client.ok()) << client.error().text;
  auto server = rank0.proven();
  EXPECT_TRUE(server.has_value());
  return {ControlConnection(std::move(client).value()), ControlConnection(std::move(*server))};
}

// The next frame; waits for it.
Result<std::optional<OpenedFrame>> next(ControlConnection& connection) {
  for (;;) {
    auto frame = connection.receive();
    if (!frame.ok() || frame.value().has_value()) return frame;
    if (!wait_readable(connection.fd(), in_ms(5'000)).value()) return frame;
  }
}

TEST(ControlConnection, CarriesFramesBothWays) {
  Rank0 rank0;
  Ends ends = connect(rank0);
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

TEST(ControlConnection, KeepsWhatTheSocketDoesNotTakeAndEndsAtItsLimit) {
  Rank0 rank0;
  Ends ends = connect(rank0);
  const std::vector<std::byte> large(kSealedPayloadBytesMax, std::byte{1});
  std::size_t sent = 0;
  Status status;
  while ((status = ends.client.send(1, large)).ok()) ASSERT_LT(++sent, 100u);
  EXPECT_EQ(status.error().code, ErrorCode::kLimit);
  EXPECT_NE(status.error().text.find("rank 0 at 127.0.0.1:"), std::string::npos)
      << status.error().text;
  EXPECT_TRUE(ends.client.has_queued());
  std::size_t received = 0;
  while (received < sent) {
    ASSERT_TRUE(ends.client.flush().ok());
    const auto frame = ends.server.receive();
    ASSERT_TRUE(frame.ok()) << frame.error().text;
    if (frame.value().has_value()) ++received;
  }
  EXPECT_FALSE(ends.client.has_queued());
}

TEST(ControlConnection, NamesAPeerThatHungUp) {
  Rank0 rank0;
  Ends ends = connect(rank0);
  { const ControlConnection gone = std::move(ends.client); }
  const auto frame = next(ends.server);
  ASSERT_FALSE(frame.ok());
  EXPECT_EQ(frame.error().code, ErrorCode::kRankLost);
  EXPECT_EQ(frame.error().rank, 2);
  EXPECT_TRUE(frame.error().text.starts_with("rank 2 at 127.0.0.1:")) << frame.error().text;
}

TEST(ControlConnection, RefusesBytesThatThePeerDidNotSeal) {
  Rank0 rank0;
  Ends ends = connect(rank0);
  const std::vector<std::byte> forged(64, std::byte{0});
  ASSERT_TRUE(send_some(ends.client.fd(), forged).ok());
  const auto frame = next(ends.server);
  ASSERT_FALSE(frame.ok());
  EXPECT_EQ(frame.error().code, ErrorCode::kMalformed);
  EXPECT_EQ(frame.error().rank, 2);
}

TEST(ConnectAuthenticated, WaitsForAPeerThatListensLater) {
  Endpoint later;
  {
    auto reserved = listen_tcp("127.0.0.1").value();
    later = local_address(reserved.get()).value().endpoint();
  }
  const ChannelKeys keys = keys_of();
  std::thread server([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    std::vector<Fd> listeners;
    listeners.push_back(listen_tcp("127.0.0.1", {.first = later.port, .last = later.port}).value());
    auto acceptor = Acceptor::create(std::move(listeners), keys, {.self = 0, .ranks = 8}).value();
    for (std::size_t proven = 0; proven == 0;) {
      ASSERT_TRUE(wait_readable(acceptor.fd(), in_ms(5'000)).value());
      proven += acceptor.poll(monotonic_ns()).value().size();
    }
  });
  const Endpoint candidates[] = {later};
  const Hello hello{.from = 2, .to = 0};
  const auto proven = connect_authenticated(keys, hello, candidates, in_ms(5'000));
  server.join();
  EXPECT_TRUE(proven.ok()) << proven.error().text;
}

TEST(ConnectAuthenticated, PassesOverAddressesOfOtherMachines) {
  Rank0 rank0;
  Rank0 elsewhere({.epoch = 9});
  Endpoint nobody;
  {
    auto reserved = listen_tcp("127.0.0.1").value();
    nobody = local_address(reserved.get()).value().endpoint();
  }
  const Endpoint candidates[] = {nobody, elsewhere.endpoint(), rank0.endpoint()};
  const Hello hello{.from = 2, .to = 0};
  const auto proven = connect_authenticated(rank0.keys(), hello, candidates, in_ms(5'000));
  ASSERT_TRUE(proven.ok()) << proven.error().text;
  EXPECT_EQ(proven.value().address, to_string(rank0.endpoint()));
}

TEST(ConnectAuthenticated, SaysInTimeWhatWasWrongWithEachCandidate) {
  Endpoint nobody;
  auto silent = listen_tcp("127.0.0.1").value();  // accepts in the kernel, never answers
  {
    auto reserved = listen_tcp("127.0.0.1").value();
    nobody = local_address(reserved.get()).value().endpoint();
  }
  const Endpoint candidates[] = {nobody, local_address(silent.get()).value().endpoint()};
  const ChannelKeys keys = keys_of();
  const Hello hello{.from = 2, .to = 0};
  const std::uint64_t began = monotonic_ns();
  const auto proven = connect_authenticated(keys, hello, candidates, in_ms(200));
  EXPECT_LT(monotonic_ns() - began, 2'000'000'000u);
  ASSERT_FALSE(proven.ok());
  EXPECT_EQ(proven.error().code, ErrorCode::kTimeout);
  EXPECT_EQ(proven.error().rank, 0);
  const std::string& text = proven.error().text;
  EXPECT_NE(text.find("rank 0 could not be reached in time"), std::string::npos) << text;
  EXPECT_NE(text.find("Connection refused"), std::string::npos) << text;
  EXPECT_NE(text.find("did not prove in time"), std::string::npos) << text;
}

TEST(ConnectAuthenticated, ReportsWhoCannotProveThatItIsThePeer) {
  // Answers as a server does, with random bytes.
  auto liar = listen_tcp("127.0.0.1").value();
  const Endpoint candidates[] = {local_address(liar.get()).value().endpoint()};
  std::thread answers([&] {
    ASSERT_TRUE(wait_readable(liar.get(), in_ms(5'000)).value());
    const Fd caller(::accept(liar.get(), nullptr, nullptr));
    const std::vector<std::byte> bytes(sizeof(Nonce) + kWelcomeBytes, std::byte{3});
    ASSERT_TRUE(send_some(caller.get(), bytes).ok());
    std::byte buffer[256];
    (void)wait_readable(caller.get(), in_ms(1'000));
    (void)receive_some(caller.get(), buffer);
  });
  const ChannelKeys keys = keys_of();
  const Hello hello{.from = 2, .to = 0};
  const auto proven = connect_authenticated(keys, hello, candidates, in_ms(100));
  answers.join();
  ASSERT_FALSE(proven.ok());
  EXPECT_NE(proven.error().text.find("who answers for rank 0 does not hold this job's key"),
            std::string::npos)
      << proven.error().text;
}

}  // namespace
}  // namespace ciranda
