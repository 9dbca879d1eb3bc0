// What could break: data that lands beside its place, a message that is believed though it was
// changed, a length that a peer announces, bytes that a slow socket cuts anywhere.
#include "core/transport/link/message_link.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <numeric>
#include <random>
#include <string>

#include "core/transport/tcp/socket_io.h"
#include "wire/keys.h"

namespace ciranda {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::size_t kMessageMax = 1000;

struct Pair {
  explicit Pair(bool authenticates = true, int buffer_bytes = 0) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    for (const int end : ends) {
      if (buffer_bytes == 0) break;
      ::setsockopt(end, SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
    }
    a = make(ends[0], 1, 2, authenticates);
    b = make(ends[1], 2, 1, authenticates);
  }
  static std::unique_ptr<MessageLink> make(int socket, int sends, int receives,
                                           bool authenticates) {
    return std::make_unique<MessageLink>(
        ProvenSocket{.stream = Stream(Fd(socket)),
                     .session = {.send_key = test::secret_of(sends),
                                 .receive_key = test::secret_of(receives)},
                     .address = "there"},
        kMessageMax, authenticates);
  }
  std::unique_ptr<MessageLink> a;
  std::unique_ptr<MessageLink> b;
};

Bytes random_bytes(std::size_t size, std::mt19937& random) {
  Bytes bytes(size);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

// Parts of `whole` of random sizes, some empty.
template <typename Span, typename Whole>
std::vector<Span> parts_of(Whole& whole, std::mt19937& random, std::size_t largest) {
  std::vector<Span> parts;
  for (std::size_t at = 0; at < whole.size();) {
    const std::size_t bytes = std::min(whole.size() - at, random() % (largest + 1));
    parts.push_back(Span(whole).subspan(at, bytes));
    at += bytes;
  }
  return parts;
}

// Both sides cut as they like; what arrives is what was sent, in its order.
TEST(MessageLink, CarriesMessagesWithTheirData) {
  for (const bool authenticates : {true, false}) {
    std::mt19937 random(7);
    Pair pair(authenticates, /*buffer_bytes=*/8'192);
    for (int turn = 0; turn < 40; ++turn) {
      const Bytes message = random_bytes(1 + random() % kMessageMax, random);
      const Bytes data = random_bytes(turn % 4 == 0 ? 0 : random() % 400'000, random);
      const std::size_t largest = turn % 2 == 0 ? 300 : 200'000;
      const auto places = parts_of<std::span<const std::byte>>(data, random, largest);
      ASSERT_TRUE(pair.a->send(message, {places}).ok());
      Bytes landed(data.size());
      std::optional<Bytes> heard;
      for (bool complete = false; !complete;) {
        ASSERT_TRUE(pair.a->flush().ok());
        if (!heard) {
          const auto received = pair.b->receive_message();
          ASSERT_TRUE(received.ok()) << received.error().text;
          if (!received.value()) continue;
          heard.emplace(received.value()->begin(), received.value()->end());
          pair.b->expect(parts_of<std::span<std::byte>>(landed, random, largest));
        }
        const auto all = pair.b->receive_data();
        ASSERT_TRUE(all.ok()) << all.error().text;
        complete = all.value();
      }
      ASSERT_EQ(*heard, message);
      ASSERT_TRUE(landed == data) << "turn " << turn;
      ASSERT_FALSE(pair.a->has_queued());
    }
  }
}

// Of two parts the second lands where it is expected, however small the first is.
TEST(MessageLink, ExpectsEachPartByItself) {
  Pair pair;
  const Bytes first(3, std::byte{1});
  const Bytes second(200'000, std::byte{2});
  ASSERT_TRUE(pair.a->send(Bytes(1), {{std::span(first)}, {}, {std::span(second)}}).ok());
  ASSERT_TRUE(pair.b->receive_message().value());
  Bytes landed(3);
  pair.b->expect({std::span(landed)});
  ASSERT_TRUE(pair.b->receive_data().value());
  EXPECT_EQ(landed, first);
  Bytes rest(200'000);
  pair.b->expect({std::span(rest)});
  while (!pair.b->receive_data().value()) ASSERT_TRUE(pair.a->flush().ok());
  EXPECT_TRUE(rest == second);
}

// The data is read when it goes, and its owner kept until then.
TEST(MessageLink, KeepsWhatItHasNotSent) {
  Pair pair(true, /*buffer_bytes=*/8'192);
  auto owner = std::make_shared<Bytes>(1'000'000, std::byte{3});
  const std::weak_ptr<Bytes> watched = owner;
  const Bytes message(1);
  ASSERT_TRUE(pair.a->send(message, {{std::span<const std::byte>(*owner)}}, owner).ok());
  owner.reset();
  EXPECT_FALSE(watched.expired());
  EXPECT_TRUE(pair.a->watched().writable);
  Bytes landed(1'000'000);
  while (!pair.b->receive_message().value()) ASSERT_TRUE(pair.a->flush().ok());
  pair.b->expect({std::span(landed)});
  while (!pair.b->receive_data().value()) ASSERT_TRUE(pair.a->flush().ok());
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(landed.back(), std::byte{3});
}

// What travels from `sender` to its peer, changed by `change`, and what the peer says of it.
template <typename Change>
std::string verdict(bool authenticates, Change change) {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  const Fd wire(ends[1]);
  const auto sender = Pair::make(ends[0], 1, 2, authenticates);
  const Bytes message(10, std::byte{1});
  const Bytes data(50, std::byte{2});
  EXPECT_TRUE(sender->send(message, {{std::span(data)}}).ok());
  Bytes bytes(1'000);
  bytes.resize(static_cast<std::size_t>(::read(wire.get(), bytes.data(), bytes.size())));
  change(bytes);
  int others[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, others), 0);
  const Fd other(others[0]);
  EXPECT_EQ(::write(other.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  const auto receiver = Pair::make(others[1], 2, 1, authenticates);
  const auto heard = receiver->receive_message();
  if (!heard) return heard.error().text;
  Bytes landed(50);
  receiver->expect({std::span(landed)});
  const auto complete = receiver->receive_data();
  return complete ? (complete.value() ? "all" : "waits") : complete.error().text;
}

TEST(MessageLink, NoChangeOnTheWayIsBelieved) {
  const auto at = [](std::size_t byte) {
    return [byte](Bytes& bytes) { bytes[byte] ^= std::byte{1}; };
  };
  const std::size_t message = kDataHeaderBytes;
  const std::size_t data = 2 * kDataHeaderBytes + 10;
  EXPECT_EQ(verdict(true, [](Bytes&) {}), "all");
  EXPECT_EQ(verdict(false, [](Bytes&) {}), "all");
  for (const bool authenticates : {true, false}) {
    EXPECT_NE(verdict(authenticates, at(0)).find("changed"), std::string::npos);
    EXPECT_NE(verdict(authenticates, at(message)).find("changed"), std::string::npos);
  }
  EXPECT_NE(verdict(true, at(data)).find("changed"), std::string::npos);
  EXPECT_EQ(verdict(false, at(data)), "all");  // on a trusted network
  EXPECT_EQ(verdict(true, [](Bytes& bytes) { bytes.pop_back(); }), "waits");
}

TEST(MessageLink, AnnouncedLengthsAreBounded) {
  Pair pair;
  const Bytes message(kMessageMax);
  const Bytes data(100);
  ASSERT_TRUE(pair.a->send(message, {{std::span(data)}}).ok());
  ASSERT_TRUE(pair.b->receive_message().value());
  Bytes less(99);
  pair.b->expect({std::span(less)});
  const auto received = pair.b->receive_data();
  ASSERT_FALSE(received.ok());
  EXPECT_EQ(received.error().text,
            "it sent 100 bytes of kind 1 where at most 99 of kind 1 were due");
}

}  // namespace
}  // namespace ciranda
