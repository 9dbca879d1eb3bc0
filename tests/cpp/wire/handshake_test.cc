// What could break: somebody without the job's key gets in or learns something, or a rank that has
// it does not get in.
#include "core/wire/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "wire/keys.h"

namespace ciranda {
namespace {

using test::keys_of;
using test::nonce_of;
using Bytes = std::vector<std::byte>;

constexpr ServerHandshake::Side kServer{.self = 0, .incarnation = 77, .ranks = 4};
const Hello kHello{.purpose = Purpose::kControl,
                   .stream = 5,
                   .from = 2,
                   .to = 0,
                   .incarnation = 99,
                   .nonce = nonce_of(10)};

Bytes copy_of(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

Bytes bytes_of(std::string_view text) {
  return copy_of(std::as_bytes(std::span(text)));
}

// Hands `bytes` over in pieces of `piece()`, as a socket would; the rest stays in `bytes`.
template <typename Side, typename Piece>
Status feed(Side& side, Bytes& bytes, Bytes& out, const Piece& piece) {
  while (!bytes.empty() && side.wanted() > 0) {
    const std::size_t size = std::min({piece(), bytes.size(), side.wanted()});
    const Status status = side.receive(std::span(bytes).first(size), out);
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    if (!status.ok()) return status;
  }
  return {};
}
const auto whole = [] { return std::size_t{1} << 20; };

struct Talk {
  Status client;
  Status server;
  Bytes to_server;  // all that was said
  Bytes to_client;
};

// Runs both sides until nothing is left to be said.
template <typename Piece>
Talk talk(ClientHandshake& client, ServerHandshake& server, const Piece& piece) {
  Talk said;
  Bytes to_server = copy_of(client.hello());
  Bytes to_client;
  while (!to_server.empty() || !to_client.empty()) {
    said.to_server.insert(said.to_server.end(), to_server.begin(), to_server.end());
    if (said.server = feed(server, to_server, to_client, piece); !said.server.ok()) break;
    said.to_client.insert(said.to_client.end(), to_client.begin(), to_client.end());
    if (said.client = feed(client, to_client, to_server, piece); !said.client.ok()) break;
  }
  return said;
}

Talk talk(ClientHandshake& client, ServerHandshake& server) {
  return talk(client, server, whole);
}

// What the server writes into its log about `hello`, which is all that it was sent.
std::string refusal_of(std::span<const std::byte> hello, const ConnectionKeys& keys,
                       const ServerHandshake::Side& side = kServer) {
  ServerHandshake server(keys, side, nonce_of(20));
  Bytes bytes = copy_of(hello);
  Bytes out;
  const Status status = feed(server, bytes, out, whole);
  EXPECT_TRUE(out.empty()) << "a stranger is answered";
  EXPECT_EQ(server.wanted(), 0u);
  EXPECT_FALSE(server.session().has_value());
  return status.ok() ? "no refusal" : status.error().text;
}

std::string refusal_of(const Hello& hello, const ConnectionKeys& keys) {
  return refusal_of(ClientHandshake(keys, hello).hello(), keys_of());
}

TEST(Handshake, GivesBothSidesTheSameKeysAndEachOthersIdentity) {
  const ConnectionKeys keys = keys_of();
  ClientHandshake client(keys, kHello);
  ServerHandshake server(keys, kServer, nonce_of(20));
  const Talk said = talk(client, server);
  ASSERT_TRUE(client.session().has_value() && server.session().has_value());
  const Session& ours = *client.session();
  const Session& theirs = *server.session();
  EXPECT_TRUE(std::ranges::equal(ours.send_key.bytes(), theirs.receive_key.bytes()));
  EXPECT_TRUE(std::ranges::equal(ours.receive_key.bytes(), theirs.send_key.bytes()));
  EXPECT_FALSE(std::ranges::equal(ours.send_key.bytes(), ours.receive_key.bytes()));
  EXPECT_EQ(ours.peer, 0);
  EXPECT_EQ(ours.peer_incarnation, 77u);
  EXPECT_EQ(theirs.peer, 2);
  EXPECT_EQ(theirs.peer_incarnation, 99u);
  EXPECT_EQ(theirs.purpose, Purpose::kControl);
  EXPECT_EQ(theirs.stream, 5);
  EXPECT_EQ(ours.version, 2);
  EXPECT_EQ(said.to_server.size(), kHelloBytes + kProofBytes);
  EXPECT_EQ(said.to_client.size(), sizeof(Nonce) + kWelcomeBytes);
}

TEST(Handshake, WorksInPiecesOfAnySize) {
  const ConnectionKeys keys = keys_of();
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const std::size_t largest = seed == 0 ? 1 : 1 + random() % 60;
    ClientHandshake client(keys, kHello);
    ServerHandshake server(keys, kServer, nonce_of(20));
    (void)talk(client, server, [&] { return 1 + random() % largest; });
    ASSERT_TRUE(client.session().has_value() && server.session().has_value()) << "seed " << seed;
  }
}

TEST(Handshake, GivesNewKeysToEveryConnection) {
  const ConnectionKeys keys = keys_of();
  std::set<Bytes> seen;
  for (int i = 0; i < 8; ++i) {
    Hello hello = kHello;
    hello.nonce = nonce_of(i / 2);
    ClientHandshake client(keys, hello);
    ServerHandshake server(keys, kServer, nonce_of(100 + i));
    (void)talk(client, server);
    seen.insert(copy_of(client.session()->send_key.bytes()));
    seen.insert(copy_of(client.session()->receive_key.bytes()));
  }
  EXPECT_EQ(seen.size(), 16u);
}

TEST(Handshake, TellsAStrangerNothingButRandomBytes) {
  const ConnectionKeys keys = keys_of();
  ServerHandshake server(keys, kServer, nonce_of(20));
  Bytes bytes = copy_of(ClientHandshake(keys, kHello).hello());
  Bytes out;
  ASSERT_TRUE(feed(server, bytes, out, whole).ok());
  EXPECT_EQ(out, copy_of(nonce_of(20)));
  out.clear();
  Bytes guess(kProofBytes, std::byte{0});
  const Status status = feed(server, guess, out, whole);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(
      status.error().text,
      "a caller that says it is rank 2 does not hold this job's key, or replays recorded bytes");
  EXPECT_TRUE(out.empty());
  EXPECT_EQ(server.wanted(), 0u);
}

TEST(Handshake, RefusesAnotherKeyOnBothSides) {
  const ConnectionKeys keys = keys_of(1);
  const ConnectionKeys other = keys_of(9);
  ClientHandshake client(other, kHello);
  ServerHandshake server(keys, kServer, nonce_of(20));
  EXPECT_FALSE(talk(client, server).server.ok());

  // Somebody answers in the server's place and cannot prove anything either.
  ClientHandshake misled(keys, kHello);
  Bytes out;
  Bytes answer(sizeof(Nonce) + kWelcomeBytes, std::byte{1});
  const Status status = feed(misled, answer, out, whole);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().text, "the process that answers as rank 0 does not hold this job's key");
  EXPECT_EQ(out.size(), kProofBytes) << "its proof is of no use to them";
  EXPECT_FALSE(misled.session().has_value());
}

TEST(Handshake, RefusesWhatWasOverheard) {
  const ConnectionKeys keys = keys_of();
  ClientHandshake client(keys, kHello);
  ServerHandshake server(keys, kServer, nonce_of(20));
  Talk said = talk(client, server);
  ASSERT_TRUE(server.session().has_value());

  ServerHandshake again(keys, kServer, nonce_of(21));
  Bytes out;
  EXPECT_FALSE(feed(again, said.to_server, out, whole).ok());
  EXPECT_FALSE(again.session().has_value());

  Hello hello = kHello;
  hello.nonce = nonce_of(11);
  ClientHandshake other(keys, hello);
  EXPECT_FALSE(feed(other, said.to_client, out, whole).ok());
}

TEST(Handshake, RefusesItsOwnBytesSentBack) {
  const ConnectionKeys keys = keys_of();
  const Hello own{.from = 0, .to = 2, .incarnation = 77, .nonce = nonce_of(1)};
  EXPECT_EQ(refusal_of(own, keys),
            "a caller that says it is rank 0 looks for rank 2, this is rank 0; two addresses are "
            "mixed up");

  // A server's proof is none of a client's, and the other way round.
  ClientHandshake client(keys, kHello);
  Bytes out;
  Bytes nonce = copy_of(nonce_of(20));
  ASSERT_TRUE(feed(client, nonce, out, whole).ok());
  Bytes echo = out;
  echo.resize(kWelcomeBytes);
  EXPECT_FALSE(feed(client, echo, out, whole).ok());
}

TEST(Handshake, NoticesEveryBitThatIsChangedOnTheWay) {
  const ConnectionKeys keys = keys_of();
  for (std::size_t bit = 0; bit < 8 * (kHelloBytes + kProofBytes); ++bit) {
    ClientHandshake client(keys, kHello);
    ServerHandshake server(keys, kServer, nonce_of(20));
    Bytes hello = copy_of(client.hello());
    if (bit < 8 * kHelloBytes) hello[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    Bytes nonce;
    if (!feed(server, hello, nonce, whole).ok()) continue;
    Bytes proof;
    ASSERT_TRUE(feed(client, nonce, proof, whole).ok());
    if (bit >= 8 * kHelloBytes)
      proof[bit / 8 - kHelloBytes] ^= static_cast<std::byte>(1 << bit % 8);
    Bytes welcome;
    EXPECT_FALSE(feed(server, proof, welcome, whole).ok()) << "bit " << bit;
    EXPECT_TRUE(welcome.empty());
  }
  for (std::size_t bit = 0; bit < 8 * (sizeof(Nonce) + kWelcomeBytes); ++bit) {
    ClientHandshake client(keys, kHello);
    ServerHandshake server(keys, kServer, nonce_of(20));
    Talk said = talk(client, server);
    ClientHandshake cheated(keys, kHello);
    said.to_client[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    Bytes out;
    EXPECT_FALSE(feed(cheated, said.to_client, out, whole).ok()) << "bit " << bit;
    EXPECT_FALSE(cheated.session().has_value());
  }
}

TEST(Handshake, NamesAnotherVersionOnBothSidesOnceTheyAreProven) {
  const ConnectionKeys keys = keys_of();
  Hello hello = kHello;
  hello.versions = {.min = 3, .max = 4};
  ClientHandshake client(keys, hello);
  ServerHandshake server(keys, kServer, nonce_of(20));
  Bytes to_server = copy_of(client.hello());
  Bytes to_client;
  ASSERT_TRUE(feed(server, to_server, to_client, whole).ok());
  ASSERT_TRUE(feed(client, to_client, to_server, whole).ok());
  const Status of_server = feed(server, to_server, to_client, whole);
  ASSERT_FALSE(of_server.ok());
  EXPECT_EQ(of_server.error().text,
            "rank 2 speaks protocol 3 to 4, this side 2 to 2; install the same ciranda on every "
            "host");
  const Status of_client = feed(client, to_client, to_server, whole);
  ASSERT_FALSE(of_client.ok());
  EXPECT_EQ(of_client.error().text,
            "rank 0 speaks protocol 2, this side 3 to 4; install the same ciranda on every host");
  EXPECT_FALSE(server.session().has_value() || client.session().has_value());

  const ConnectionKeys others = keys_of(9);
  ClientHandshake stranger(others, hello);
  ServerHandshake again(keys, kServer, nonce_of(20));
  EXPECT_EQ(talk(stranger, again).to_client.size(), sizeof(Nonce)) << "it learns nothing";
}

TEST(Handshake, ChoosesTheNewestVersionThatBothSpeak) {
  const ConnectionKeys keys = keys_of();
  Hello hello = kHello;
  hello.versions = {.min = 2, .max = 6};
  ServerHandshake::Side side = kServer;
  side.versions = {.min = 1, .max = 4};
  ClientHandshake client(keys, hello);
  ServerHandshake server(keys, side, nonce_of(20));
  (void)talk(client, server);
  EXPECT_EQ(client.session()->version, 4);
  EXPECT_EQ(server.session()->version, 4);
}

TEST(Handshake, NamesAnotherJobOrEpoch) {
  EXPECT_EQ(refusal_of(kHello, keys_of(1, 0xab)),
            "a caller that says it is rank 2 belongs to job abababababababababababababababab, "
            "this is job 02020202020202020202020202020202");
  EXPECT_EQ(refusal_of(kHello, keys_of(1, 2, 8)),
            "a caller that says it is rank 2 comes from epoch 8, this is epoch 3");
}

TEST(Handshake, RefusesARankThatCannotBe) {
  Hello hello = kHello;
  hello.from = 4;
  EXPECT_EQ(refusal_of(hello, keys_of()),
            "a caller that says it is rank 4 is not one of this job's 4 ranks; start every rank "
            "with the same size");
  hello = kHello;
  hello.to = 3;
  EXPECT_EQ(refusal_of(hello, keys_of()),
            "a caller that says it is rank 2 looks for rank 3, this is rank 0; two addresses are "
            "mixed up");
  ServerHandshake::Side side = kServer;
  side.self = 2;
  hello = kHello;
  hello.from = 1;
  hello.to = 2;
  Bytes bytes = copy_of(ClientHandshake(keys_of(), hello).hello());
  bytes[32] = std::byte{2};  // from
  EXPECT_EQ(refusal_of(bytes, keys_of(), side),
            "a caller says it is rank 2, which is this rank: this rank was started twice, or its "
            "own bytes came back");
}

// Worker 1 calls server 1, whose job has a rank 1 nowhere.
TEST(Handshake, AWorkerAndItsServerMayHaveTheSameNumber) {
  const ConnectionKeys keys = keys_of();
  Hello hello = kHello;
  hello.purpose = Purpose::kService;
  hello.from = 1;
  hello.to = 1;
  const ServerHandshake::Side side{.self = 1, .is_server = true};
  ClientHandshake client(keys, hello);
  ServerHandshake server(keys, side, nonce_of(20));
  (void)talk(client, server);
  ASSERT_TRUE(client.session() && server.session());
  EXPECT_EQ(server.session()->peer, 1);
  EXPECT_EQ(server.session()->purpose, Purpose::kService);
}

TEST(Handshake, RanksAndServersAreNotMixedUp) {
  const ConnectionKeys keys = keys_of();
  Hello hello = kHello;
  hello.from = 1;
  hello.to = 0;
  const ServerHandshake::Side server{.self = 0, .is_server = true};
  EXPECT_EQ(refusal_of(copy_of(ClientHandshake(keys, hello).hello()), keys_of(), server),
            "a caller that says it is rank 1 looks for rank 0, this is server 0; two addresses are "
            "mixed up");
  hello.purpose = Purpose::kService;
  const ServerHandshake::Side rank{.self = 0, .ranks = 4};
  EXPECT_EQ(refusal_of(copy_of(ClientHandshake(keys, hello).hello()), keys_of(), rank),
            "a caller that says it is worker 1 looks for server 0, this is rank 0; two addresses "
            "are mixed up");
}

TEST(Handshake, RecognisesStrangersByTheirFirstByte) {
  const std::string not_ours = "the caller's first bytes are not ciranda's";
  EXPECT_EQ(refusal_of(bytes_of("GET / HTTP/1.1\r\n"), keys_of()),
            not_ours + ", they look like HTTP");
  EXPECT_EQ(refusal_of(bytes_of("SSH-2.0-OpenSSH"), keys_of()), not_ours + ", they look like SSH");
  EXPECT_EQ(refusal_of(bytes_of("\x16\x03\x01\x02"), keys_of()),
            not_ours + ", they look like TLS; if it is a rank, " + std::string(kTlsForAllOrNone));
  EXPECT_EQ(refusal_of(bytes_of("x"), keys_of()), not_ours);
  EXPECT_EQ(refusal_of(bytes_of("\xc1"
                                "cirandb"),
                       keys_of()),
            not_ours);
}

TEST(Handshake, RefusesAMalformedHelloWithFieldAndOffset) {
  const Bytes good = copy_of(ClientHandshake(keys_of(), kHello).hello());
  const auto changed = [&](std::size_t at, int value) {
    Bytes bytes = good;
    bytes[at] = static_cast<std::byte>(value);
    return refusal_of(bytes, keys_of());
  };
  const std::string malformed = "the caller's hello is malformed: ";
  EXPECT_EQ(changed(12, kPurposeCount), malformed + "purpose at byte 12 is out of range");
  EXPECT_EQ(changed(13, 1), malformed + "reserved at byte 13 is not zero");
  EXPECT_EQ(changed(14, kPairStreamsMax), malformed + "stream at byte 16 is out of range");
  EXPECT_EQ(changed(35, 0x80), malformed + "from at byte 36 is out of range");
  EXPECT_EQ(changed(127, 1), malformed + "padding at byte 88 is not zero");
}

}  // namespace
}  // namespace ciranda
