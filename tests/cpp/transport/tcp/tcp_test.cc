// What could break: a socket that everybody reaches, a port that is raced for, a wait without end.
#include "core/transport/tcp/tcp.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/transport/tcp/socket_io.h"

namespace ciranda {
namespace {

std::uint64_t ms_from_now(std::uint64_t ms) {
  return monotonic_ns() + ms * 1'000'000;
}

int option(int socket, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  EXPECT_EQ(::getsockopt(socket, level, name, &value, &length), 0);
  return value;
}

std::uint16_t port_of(const Fd& socket) {
  return local_address(socket.get()).value().endpoint().port;
}

Result<Fd> connect_to(const std::string& host, std::uint16_t port) {
  auto addresses = resolve({.host = host, .port = port});
  if (!addresses) return addresses.error();
  return connect_tcp(addresses.value().front(), ms_from_now(5'000));
}

class TcpFamily : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Both, TcpFamily, ::testing::Values("127.0.0.1", "::1"));

TEST_P(TcpFamily, ConnectsToAChosenPortWithTheOptionsOfAConnection) {
  auto listener = listen_tcp(GetParam());
  ASSERT_TRUE(listener.ok()) << listener.error().text;
  auto client = connect_to(GetParam(), port_of(listener.value()));
  ASSERT_TRUE(client.ok()) << client.error().text;
  const int fd = client.value().get();
  EXPECT_EQ(option(fd, IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(option(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(option(fd, IPPROTO_TCP, TCP_KEEPIDLE), 1);
  for (const int each : {fd, listener.value().get()}) {
    EXPECT_NE(::fcntl(each, F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_NE(::fcntl(each, F_GETFL) & O_NONBLOCK, 0);
  }
  EXPECT_EQ(peer_address(fd).value().endpoint().host, GetParam());
}

TEST(Tcp, ListensOnOneFamilyOnly) {
  auto listener = listen_tcp("::1");
  ASSERT_TRUE(listener.ok());
  EXPECT_EQ(option(listener.value().get(), IPPROTO_IPV6, IPV6_V6ONLY), 1);
  EXPECT_FALSE(connect_to("127.0.0.1", port_of(listener.value())).ok());
}

TEST(Tcp, NeverListensOnEveryNetwork) {
  for (const char* everywhere : {"0.0.0.0", "::", "::ffff:0.0.0.0"}) {
    const auto listener = listen_tcp(everywhere);
    ASSERT_FALSE(listener.ok()) << everywhere;
    EXPECT_NE(listener.error().text.find("means every network of this machine"), std::string::npos)
        << listener.error().text;
  }
}

TEST(Tcp, KnowsAddressesThatOnlyThisHostReaches) {
  for (const auto& [host, loopback] :
       std::vector<std::pair<const char*, bool>>{{"127.0.0.1", true},
                                                 {"127.0.1.1", true},
                                                 {"::1", true},
                                                 {"128.0.0.1", false},
                                                 {"10.0.0.1", false},
                                                 {"fd00::1", false}}) {
    EXPECT_EQ(is_loopback(resolve({.host = host}).value().front()), loopback) << host;
  }
}

TEST(Tcp, TakesTheNextFreePortOfARange) {
  auto first = listen_tcp("127.0.0.1", {.first = 20'000, .last = 65'000});
  ASSERT_TRUE(first.ok());
  const std::uint16_t port = port_of(first.value());
  auto none = listen_tcp("127.0.0.1", {.first = port, .last = port});
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().text.find(std::to_string(port) + ", which another program of user "),
            std::string::npos)
      << none.error().text;
  const std::uint16_t last = static_cast<std::uint16_t>(port + 200);
  auto next = listen_tcp("127.0.0.1", {.first = port, .last = last});
  ASSERT_TRUE(next.ok()) << next.error().text;
  EXPECT_GT(port_of(next.value()), port);
}

TEST(Tcp, NamesAnAddressOrRangeThatCannotBe) {
  EXPECT_NE(
      listen_tcp("192.0.2.77")
          .error()
          .text.find("cannot listen on 192.0.2.77:0, which must be an address of this machine"),
      std::string::npos)
      << listen_tcp("192.0.2.77").error().text;
  EXPECT_NE(listen_tcp("127.0.0.1", {.first = 9, .last = 8}).error().text.find("are not a range"),
            std::string::npos);
  EXPECT_NE(listen_tcp("no-such-host.invalid")
                .error()
                .text.find("cannot find the host 'no-such-host.invalid'"),
            std::string::npos);
}

TEST(Tcp, AdoptsAListenerOfTheStarterAndNothingElse) {
  Fd inherited(::dup(listen_tcp("127.0.0.1").value().get()));
  const std::uint16_t port = port_of(inherited);
  auto adopted = adopt_listener(std::move(inherited));
  ASSERT_TRUE(adopted.ok()) << adopted.error().text;
  EXPECT_NE(::fcntl(adopted.value().get(), F_GETFD) & FD_CLOEXEC, 0);
  auto client = connect_to("127.0.0.1", port);
  ASSERT_TRUE(client.ok());
  EXPECT_NE(
      adopt_listener(std::move(client).value()).error().text.find("is not a listening socket"),
      std::string::npos);
  EXPECT_NE(
      adopt_listener(Fd(::open("/dev/null", O_RDONLY))).error().text.find("is not a listening"),
      std::string::npos);

  Fd everywhere(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(::listen(everywhere.get(), 1), 0);  // unbound: the kernel takes every network
  EXPECT_NE(adopt_listener(std::move(everywhere)).error().text.find("listens on every network"),
            std::string::npos);
}

TEST(Tcp, SaysWhyNobodyIsReached) {
  auto listener = listen_tcp("127.0.0.1");
  const std::uint16_t port = port_of(listener.value());
  listener.value().reset();
  const auto refused = connect_to("127.0.0.1", port);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().text,
            "cannot connect to 127.0.0.1:" + std::to_string(port) + ": Connection refused");
}

TEST(Tcp, GivesUpAtTheDeadline) {
  // A queue of one that is never emptied: the kernel ignores further calls.
  Fd full(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto loopback = resolve({.host = "127.0.0.1", .port = 0}).value().front();
  ASSERT_EQ(::bind(full.get(), loopback.get(), loopback.length), 0);
  ASSERT_EQ(::listen(full.get(), 0), 0);
  const auto address = local_address(full.get()).value();
  std::vector<Fd> callers;
  Result<Fd> last = Fd();
  const std::uint64_t began = monotonic_ns();
  for (int i = 0; i < 4 && last.ok(); ++i) {
    last = connect_tcp(address, ms_from_now(100));
    if (last.ok()) callers.push_back(std::move(last).value());
  }
  ASSERT_FALSE(last.ok());
  EXPECT_EQ(last.error().code, ErrorCode::kTimeout);
  EXPECT_EQ(last.error().text, "nobody answered at " + to_string(address.endpoint()) + " in time");
  EXPECT_LT(monotonic_ns() - began, 3'000'000'000u);
}

TEST(Tcp, TellsAClosedPeerFromASilentOne) {
  auto listener = listen_tcp("127.0.0.1");
  auto client = connect_to("127.0.0.1", port_of(listener.value()));
  ASSERT_TRUE(wait_readable(listener.value().get(), ms_from_now(5'000)).value());
  Fd server(::accept(listener.value().get(), nullptr, nullptr));
  std::byte buffer[16];
  EXPECT_EQ(receive_some(client.value().get(), buffer).value(), 0u);
  EXPECT_EQ(send_some(server.get(), std::span(buffer).first(3)).value(), 3u);
  ASSERT_TRUE(wait_readable(client.value().get(), ms_from_now(5'000)).value());
  EXPECT_EQ(receive_some(client.value().get(), buffer).value(), 3u);
  turn_away(std::move(server));
  ASSERT_TRUE(wait_readable(client.value().get(), ms_from_now(5'000)).value());
  EXPECT_EQ(receive_some(client.value().get(), buffer).error().code, ErrorCode::kRankLost);
  EXPECT_EQ(send_some(client.value().get(), buffer).error().code, ErrorCode::kRankLost);
}

TEST(Tcp, APeerThatReadsNothingStillAnswers) {
  auto listener = listen_tcp("127.0.0.1");
  auto client = connect_to("127.0.0.1", port_of(listener.value()));
  const int fd = client.value().get();
  ::poll(nullptr, 0, 120);
  const Status idle = check_answers(fd, 100);
  ASSERT_FALSE(idle.ok()) << "nobody was asked yet, so nobody has answered";
  EXPECT_EQ(idle.error().code, ErrorCode::kRankLost);
  EXPECT_TRUE(check_answers(fd, 1000).ok());

  const std::vector<std::byte> bytes(1 << 20);
  while (send_some(fd, bytes).value() > 0) {
  }
  for (int i = 0; i < 10; ++i) {  // asked after 0.2, 0.4, 0.8 s
    ::poll(nullptr, 0, 100);
    while (send_some(fd, bytes).value() > 0) {
    }
  }
  EXPECT_TRUE(check_answers(fd, 1).ok());
}

TEST(Tcp, PacesFarConnectionsOnly) {
  auto listener = listen_tcp("127.0.0.1");
  ASSERT_TRUE(listener.ok()) << listener.error().text;
  auto client = connect_to("127.0.0.1", port_of(listener.value()));
  ASSERT_TRUE(client.ok()) << client.error().text;
  const int fd = client.value().get();
  const auto rate_max = [fd] {
    std::uint64_t rate = 0;
    socklen_t length = sizeof rate;
    EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &length), 0);
    return rate;
  };
  EXPECT_FALSE(pace_when_far(fd, /*far_us=*/1'000'000));
  EXPECT_EQ(rate_max(), UINT64_MAX) << "not paced";
  EXPECT_TRUE(pace_when_far(fd, /*far_us=*/1));
  EXPECT_EQ(rate_max(), UINT64_MAX - 1) << "paced, and as fast as it likes";
}

TEST(Endpoint, PutsIpv6InBrackets) {
  EXPECT_EQ(to_string(Endpoint{.host = "2001:db8::1", .port = 7}), "[2001:db8::1]:7");
  EXPECT_EQ(to_string(Endpoint{.host = "host", .port = 7}), "host:7");
}

}  // namespace
}  // namespace ciranda
