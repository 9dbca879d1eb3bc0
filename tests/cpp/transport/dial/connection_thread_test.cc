// What could break: a connection is made twice or never, an end waits for a peer, a child holds
// one.
#include "core/transport/dial/connection_thread.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "core/base/clock.h"
#include "core/transport/tcp/socket_io.h"
#include "transport/dial/acceptor.h"

namespace ciranda {
namespace {

using test::in_ms;
using test::keys_of;

// One rank of a job of 8.
struct Subscriber {
  explicit Subscriber(Rank which) : rank(which) {
    auto keys = std::make_unique<const ConnectionKeys>(keys_of());
    std::vector<Fd> listeners;
    listeners.push_back(listen_tcp("127.0.0.1").value());
    endpoint = local_address(listeners[0].get()).value().endpoint();
    auto acceptor =
        Acceptor::create(std::move(listeners), *keys, {.self = rank, .incarnation = 1, .ranks = 8});
    connection_thread =
        ConnectionThread::start(std::move(keys), std::move(acceptor).value()).value();
  }
  void call(const Subscriber& other, int stream = 0, std::uint64_t timeout_ms = 10'000) {
    call(other.rank, other.endpoint, stream, timeout_ms);
  }
  void call(Rank to, const Endpoint& where, int stream, std::uint64_t timeout_ms) {
    connection_thread->dial({.purpose = Purpose::kData,
                             .stream = static_cast<std::uint16_t>(stream),
                             .from = rank,
                             .to = to,
                             .incarnation = 1},
                            {where}, in_ms(timeout_ms));
  }
  // Waits until so many connections have come.
  std::vector<ProvenSocket> take(std::size_t count) {
    std::vector<ProvenSocket> all;
    while (all.size() < count && wait_readable(connection_thread->fd(), in_ms(10'000)).value()) {
      auto some = connection_thread->take();
      EXPECT_TRUE(some.ok()) << some.error().text;
      if (!some) break;
      for (ProvenSocket& each : some.value()) all.push_back(std::move(each));
    }
    EXPECT_EQ(all.size(), count);
    return all;
  }

  Rank rank;
  Endpoint endpoint;
  std::unique_ptr<ConnectionThread> connection_thread;
};

TEST(ConnectionThread, ConnectsAllWhileNobodyDrives) {
  std::vector<Subscriber> all;
  for (Rank rank = 0; rank < 8; ++rank) all.emplace_back(rank);
  for (Subscriber& above : all) {
    for (Subscriber& below : all) {
      if (below.rank < above.rank) above.call(below);
    }
  }
  for (Subscriber& each : all) {
    std::vector<bool> seen(8, false);
    for (const ProvenSocket& socket : each.take(7)) {
      EXPECT_FALSE(seen[static_cast<std::size_t>(socket.session.peer)]);
      seen[static_cast<std::size_t>(socket.session.peer)] = true;
    }
    EXPECT_FALSE(seen[static_cast<std::size_t>(each.rank)]);
  }
}

TEST(ConnectionThread, PlacesMoreCallsThanItHoldsAtATime) {
  Subscriber zero(0);
  Subscriber one(1);
  static_assert(kPairStreamsMax > ConnectionThread::kDialersMax);
  for (int stream = 0; stream < kPairStreamsMax; ++stream) one.call(zero, stream);
  one.take(kPairStreamsMax);
  zero.take(kPairStreamsMax);
}

TEST(ConnectionThread, NamesARankThatNeverAnswersAndWhere) {
  auto silent = listen_tcp("127.0.0.1").value();
  const Endpoint where = local_address(silent.get()).value().endpoint();
  Subscriber one(1);
  one.call(0, where, 0, /*timeout_ms=*/200);
  ASSERT_TRUE(wait_readable(one.connection_thread->fd(), in_ms(5'000)).value());
  const auto taken = one.connection_thread->take();
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.error().code, ErrorCode::kTimeout);
  EXPECT_EQ(taken.error().rank, 0);
  EXPECT_EQ(taken.error().text, "rank 0 could not be reached in time; at " + to_string(where) +
                                    ": it did not prove in time that it belongs to this job");
}

TEST(ConnectionThread, EndsAtOnceWithCallsInTheMaking) {
  auto silent = listen_tcp("127.0.0.1").value();
  std::optional<Subscriber> one(1);
  for (int stream = 0; stream < 40; ++stream) {
    one->call(0, local_address(silent.get()).value().endpoint(), stream, 60'000);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::uint64_t began = monotonic_ns();
  one.reset();
  EXPECT_LT(monotonic_ns() - began, 1'000'000'000u);
}

// The thread is told to stop while it begins to run: the word must not be lost on its way to
// poll().
TEST(ConnectionThread, EndsHoweverSoonItIsTold) {
  for (int i = 0; i < 1000; ++i) {
    Subscriber one(1);
    const std::uint64_t end_ns = monotonic_ns() + static_cast<std::uint64_t>(i % 50) * 1000;
    while (monotonic_ns() < end_ns) {
    }
  }
}

TEST(ConnectionThread, AForkedChildKeepsNoPortOpen) {
  std::optional<Subscriber> zero(0);
  const SocketAddress address = resolve(zero->endpoint).value().front();
  ASSERT_TRUE(connect_tcp(address, in_ms(5'000)).ok());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    zero->connection_thread.release()->close_in_forked_child();
    ::pause();
    ::_exit(0);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  zero.reset();
  EXPECT_FALSE(connect_tcp(address, in_ms(1'000)).ok());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace ciranda
