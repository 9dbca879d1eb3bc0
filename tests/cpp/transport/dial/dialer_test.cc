// What could break: a rank gives a peer up too early, waits for it for ever, or believes a
// stranger.
#include "core/transport/dial/dialer.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "transport/dial/acceptor.h"

namespace ciranda {
namespace {

using test::in_ms;
using test::keys_of;
using test::Rank0;

TEST(Dialer, WaitsForAPeerThatListensLater) {
  Endpoint later;
  {
    auto reserved = listen_tcp("127.0.0.1").value();
    later = local_address(reserved.get()).value().endpoint();
  }
  const ConnectionKeys keys = keys_of();
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

TEST(Dialer, PassesOverAddressesOfOtherMachines) {
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

// The server is convinced and this call is its only one, though its answer takes longer than a
// proof.
TEST(Dialer, DoesNotCallAnewWhileTheLastAnswerIsOnItsWay) {
  const ConnectionKeys keys = keys_of();
  auto listener = listen_tcp("127.0.0.1").value();
  const Endpoint candidates[] = {local_address(listener.get()).value().endpoint()};
  std::thread server([&] {
    ASSERT_TRUE(wait_readable(listener.get(), in_ms(5'000)).value());
    const Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    Cookie cookie;
    ASSERT_EQ(::recv(socket.get(), cookie.data(), cookie.size(), 0), ssize_t{cookie.size()});
    EXPECT_EQ(cookie, cookie_of(keys, 0));
    ServerHandshake handshake(keys, {.self = 0, .ranks = 8}, Nonce{});
    std::byte buffer[kHelloBytes];
    for (std::vector<std::byte> reply; !handshake.session(); reply.clear()) {
      const ssize_t got = ::recv(socket.get(), buffer, handshake.wanted(), 0);
      ASSERT_GT(got, 0);
      ASSERT_TRUE(
          handshake.receive(std::span(buffer).first(static_cast<std::size_t>(got)), reply).ok());
      if (handshake.session())
        std::this_thread::sleep_for(std::chrono::milliseconds(kProofMs + 300));
      ASSERT_EQ(::send(socket.get(), reply.data(), reply.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(reply.size()));
    }
    EXPECT_FALSE(wait_readable(listener.get(), in_ms(50)).value()) << "it called again";
  });
  const auto proven = connect_authenticated(keys, {.from = 2, .to = 0}, candidates, in_ms(8'000));
  server.join();
  EXPECT_TRUE(proven.ok()) << proven.error().text;
}

TEST(Dialer, SaysInTimeWhatWasWrongWithEachCandidate) {
  Endpoint nobody;
  auto silent = listen_tcp("127.0.0.1").value();  // accepts in the kernel, never answers
  {
    auto reserved = listen_tcp("127.0.0.1").value();
    nobody = local_address(reserved.get()).value().endpoint();
  }
  const Endpoint candidates[] = {nobody, local_address(silent.get()).value().endpoint()};
  const ConnectionKeys keys = keys_of();
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

TEST(Dialer, IsUnansweredWhileNoHostTakesTheCall) {
  Endpoint nobody;
  {
    auto reserved = listen_tcp("127.0.0.1").value();
    nobody = local_address(reserved.get()).value().endpoint();
  }
  auto silent = listen_tcp("127.0.0.1").value();  // the kernel takes the call, the rank is stopped
  const ConnectionKeys keys = keys_of();
  for (const bool is_there : {false, true}) {
    const Endpoint to = is_there ? local_address(silent.get()).value().endpoint() : nobody;
    Dialer dialer(keys, {.from = 2, .to = 0}, {to}, kNever);
    std::uint64_t now_ns = monotonic_ns();
    EXPECT_FALSE(dialer.is_unanswered(now_ns + Dialer::kUnansweredNs)) << "nobody has called";
    const std::uint64_t later_ns = now_ns + Dialer::kUnansweredNs;
    EXPECT_FALSE(dialer.advance(now_ns).value());
    for (const std::uint64_t end_ns = in_ms(5'000); now_ns < end_ns && is_there;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      now_ns = monotonic_ns();
      EXPECT_FALSE(dialer.advance(now_ns).value());
      if (!dialer.is_unanswered(later_ns)) break;
    }
    EXPECT_FALSE(dialer.is_unanswered(later_ns - 1));
    EXPECT_EQ(dialer.is_unanswered(later_ns), !is_there);
  }
}

TEST(Dialer, ReportsWhoCannotProveThatItIsThePeer) {
  // Answers as a server does, with random bytes.
  auto liar = listen_tcp("127.0.0.1").value();
  const Endpoint candidates[] = {local_address(liar.get()).value().endpoint()};
  std::thread answers([&] {
    ASSERT_TRUE(wait_readable(liar.get(), in_ms(5'000)).value());
    const Fd caller(::accept(liar.get(), nullptr, nullptr));
    const std::vector<std::byte> bytes(sizeof(Nonce) + kWelcomeBytes, std::byte{3});
    ASSERT_TRUE(send_some(caller.get(), bytes).ok());
    // It does not hang up, which a caller that still sends would see first.
    std::byte buffer[256];
    while (wait_readable(caller.get(), in_ms(5'000)).value() &&
           receive_some(caller.get(), buffer).ok()) {
    }
  });
  const ConnectionKeys keys = keys_of();
  const Hello hello{.from = 2, .to = 0};
  const auto proven = connect_authenticated(keys, hello, candidates, in_ms(1'000));
  answers.join();
  ASSERT_FALSE(proven.ok());
  EXPECT_NE(
      proven.error().text.find("the process that answers as rank 0 does not hold this job's key"),
      std::string::npos)
      << proven.error().text;
}

TEST(Dialer, NeverBlocks) {
  auto silent = listen_tcp("127.0.0.1").value();
  const ConnectionKeys keys = keys_of();
  Dialer dialer(keys, {.from = 2, .to = 0}, {local_address(silent.get()).value().endpoint()},
                in_ms(10'000));
  const std::uint64_t began = monotonic_ns();
  for (int i = 0; i < 100; ++i) {
    const auto proven = dialer.advance(monotonic_ns());
    ASSERT_TRUE(proven.ok());
    ASSERT_FALSE(proven.value().has_value());
  }
  EXPECT_LT(monotonic_ns() - began, 500'000'000u);
  EXPECT_TRUE(dialer.watched().readable);
  EXPECT_LE(dialer.next_deadline_ns(), began + (kProofMs + 500) * 1'000'000);
}

}  // namespace
}  // namespace ciranda
