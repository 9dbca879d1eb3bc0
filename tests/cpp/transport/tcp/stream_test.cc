// What could break: bytes are lost, doubled or believed although they were changed, where a socket
// takes or gives less than a whole piece.
#include "core/transport/tcp/stream.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "core/transport/tcp/tcp.h"
#include "transport/dial/acceptor.h"

namespace ciranda {
namespace {

using test::in_ms;
using test::job_of;
using test::secret_of;

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

struct Sockets {
  Fd client, server;
};

// TCP behaves like this too, but for its timers, which make small buffers slow.
Sockets connected() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  const int small = 1;  // the kernel makes it a few KiB: less than a record of TLS
  for (const int end : ends) {
    EXPECT_EQ(::setsockopt(end, SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
  }
  return {Fd(ends[0]), Fd(ends[1])};
}

// In clear, or through TLS.
class Streams : public ::testing::TestWithParam<bool> {
 protected:
  Streams() : Streams(connected()) {}
  explicit Streams(Sockets sockets)
      : tls_(Tls::create(secret_of(1), job_of(2)).value()),
        client_(GetParam() ? Stream(std::move(sockets.client), tls_->client().value())
                           : Stream(std::move(sockets.client))),
        server_(GetParam() ? Stream(std::move(sockets.server), tls_->server().value())
                           : Stream(std::move(sockets.server))) {
    for (bool client = false, server = false; !client || !server;) {
      client = client || client_.establish().value();
      server = server || server_.establish().value();
    }
  }

  // What is there, after waiting for it.
  static Result<std::size_t> next(Stream& stream, std::span<std::byte> into) {
    for (;;) {
      auto count = stream.receive(into);
      if (!count || count.value() > 0) return count;
      EXPECT_TRUE(wait_readable(stream.fd(), in_ms(5'000)).value());
    }
  }

  const std::unique_ptr<Tls> tls_;
  Stream client_, server_;
};

// Sends a message of header and payload after the other, with whatever the socket takes.
void send_messages(Stream& stream, const std::vector<Bytes>& messages) {
  for (Bytes message : messages) {
    for (std::size_t sent = 0; sent < message.size();) {
      const std::size_t header = std::min<std::size_t>(48, message.size());
      const std::size_t of_header = std::min(sent, header);
      const iovec pieces[] = {
          {.iov_base = message.data() + of_header, .iov_len = header - of_header},
          {.iov_base = message.data() + std::max(sent, header),
           .iov_len = message.size() - std::max(sent, header)}};
      const auto count = stream.send(pieces);
      ASSERT_TRUE(count.ok()) << count.error().text;
      sent += count.value();
      if (sent < message.size()) {
        ASSERT_TRUE(wait_writable(stream.fd(), in_ms(5'000)).value());
      }
    }
  }
}

void expect_messages(Stream& stream, const std::vector<Bytes>& messages, unsigned seed) {
  std::mt19937 random(seed);
  for (const Bytes& message : messages) {
    Bytes received(message.size());
    for (std::size_t have = 0; have < received.size();) {
      const std::size_t left = received.size() - have;
      const std::size_t first = random() % (left + 1);
      const std::size_t second = random() % (left - first + 1);
      const iovec pieces[] = {{.iov_base = received.data() + have, .iov_len = first},
                              {.iov_base = received.data() + have + first, .iov_len = second}};
      const auto count = stream.receive(pieces);
      ASSERT_TRUE(count.ok()) << count.error().text;
      have += count.value();
      if (count.value() == 0 && first + second > 0) {
        ASSERT_TRUE(wait_readable(stream.fd(), in_ms(5'000)).value());
      }
    }
    ASSERT_EQ(received, message);
  }
}

TEST_P(Streams, CarryEverythingBothWaysThroughSmallBuffers) {
  std::vector<Bytes> messages;
  for (const std::size_t count : {1u, 47u, 48u, 49u, 16'384u, 16'432u, 1'000'000u, 3'000'000u}) {
    messages.push_back(random_bytes(count, static_cast<unsigned>(count)));
  }
  std::thread threads[] = {std::thread([&] { send_messages(client_, messages); }),
                           std::thread([&] { expect_messages(server_, messages, 1); })};
  for (std::thread& each : threads) each.join();
  std::thread back[] = {std::thread([&] { send_messages(server_, messages); }),
                        std::thread([&] { expect_messages(client_, messages, 2); })};
  for (std::thread& each : back) each.join();
}

TEST_P(Streams, WhatCameBeforeTheEndIsRead) {
  const Bytes said = random_bytes(500, 1);
  ASSERT_EQ(client_.send(said).value(), said.size());
  ASSERT_EQ(::shutdown(client_.fd(), SHUT_WR), 0);
  Bytes heard(1000);
  EXPECT_EQ(next(server_, heard).value(), said.size());
  heard.resize(said.size());
  EXPECT_EQ(heard, said);
  for (int again = 0; again < 2; ++again) {
    const auto end = next(server_, heard);
    ASSERT_FALSE(end.ok());
    EXPECT_EQ(end.error().code, ErrorCode::kRankLost);
  }
  // The other direction is still open.
  ASSERT_EQ(server_.send(said).value(), said.size());
  EXPECT_EQ(next(client_, heard).value(), said.size());
  EXPECT_EQ(heard, said);
}

TEST_P(Streams, APeerThatIsGoneRaisesNoSignal) {
  server_.close();
  const Bytes said = random_bytes(100'000, 1);
  Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) {
    const auto sent = client_.send(said);
    if (!sent) status = sent.error();
  }
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kRankLost);
}

TEST_P(Streams, AForkedChildThatClosesItsCopyEndsNothing) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    client_.close();
    server_.close();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  Bytes heard(3);
  ASSERT_EQ(client_.send(random_bytes(3, 1)).value(), 3u);
  EXPECT_EQ(next(server_, heard).value(), 3u);
}

TEST_P(Streams, BytesInBetweenEndAStreamOnlyWithTls) {
  const Bytes forged = random_bytes(100, 1);
  ASSERT_EQ(send_some(client_.fd(), forged).value(), forged.size());
  Bytes heard(1000);
  const auto count = next(server_, heard);
  ASSERT_EQ(count.ok(), !GetParam());
  if (!count.ok()) {
    EXPECT_EQ(count.error().code, ErrorCode::kMalformed);
  }
}

INSTANTIATE_TEST_SUITE_P(, Streams, ::testing::Bool(),
                         [](const auto& tls) { return tls.param ? "Tls" : "Clear"; });

}  // namespace
}  // namespace ciranda
