// What could break: a frame that was changed, repeated, dropped or moved is believed, or a length
// is.
#include "core/wire/sealed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "wire/keys.h"

namespace ciranda {
namespace {

using test::secret_of;
using Bytes = std::vector<std::byte>;

Bytes payload_of(std::size_t size, int fill) {
  return Bytes(size, static_cast<std::byte>(fill));
}

Bytes sealed(FrameSealer& sealer, std::uint8_t type, const Bytes& payload) {
  Bytes out;
  sealer.seal(type, payload, out);
  return out;
}

// What the opener says about all of `bytes`.
std::string verdict(FrameOpener& opener, std::span<const std::byte> bytes) {
  std::string text;
  while (!bytes.empty()) {
    const auto frame = opener.open(bytes);
    if (!frame.ok()) return text + frame.error().text;
    if (frame.value().has_value()) text += "frame ";
  }
  return text;
}

TEST(SealedFrame, ComesBackAsItWasSent) {
  FrameSealer sealer(secret_of(1));
  FrameOpener opener(secret_of(1));
  Bytes wire;
  for (std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{1000}, kSealedPayloadBytesMax}) {
    sealer.seal(static_cast<std::uint8_t>(size % 7), payload_of(size, 5), wire);
  }
  std::span<const std::byte> input = wire;
  for (std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{1000}, kSealedPayloadBytesMax}) {
    const auto frame = opener.open(input);
    ASSERT_TRUE(frame.ok()) << frame.error().text;
    ASSERT_TRUE(frame.value().has_value());
    EXPECT_EQ(frame.value()->type, size % 7);
    EXPECT_TRUE(std::ranges::equal(frame.value()->payload, payload_of(size, 5)));
  }
  EXPECT_TRUE(input.empty());
}

TEST(SealedFrame, ComesInPiecesOfAnySize) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    FrameSealer sealer(secret_of(1));
    FrameOpener opener(secret_of(1));
    std::vector<Bytes> sent;
    Bytes wire;
    for (int i = 0; i < 20; ++i) {
      sent.push_back(payload_of(random() % 300, i));
      sealer.seal(static_cast<std::uint8_t>(i), sent.back(), wire);
    }
    const std::size_t largest = seed == 0 ? 1 : 1 + random() % 400;
    std::size_t received = 0;
    for (std::size_t at = 0; at < wire.size();) {
      const std::size_t size = std::min(1 + random() % largest, wire.size() - at);
      std::span<const std::byte> input = std::span(wire).subspan(at, size);
      at += size;
      while (!input.empty()) {
        const auto frame = opener.open(input);
        ASSERT_TRUE(frame.ok()) << frame.error().text << " seed " << seed;
        if (!frame.value().has_value()) continue;
        ASSERT_EQ(frame.value()->type, received);
        ASSERT_TRUE(std::ranges::equal(frame.value()->payload, sent[received])) << "seed " << seed;
        ++received;
      }
    }
    ASSERT_EQ(received, sent.size()) << "seed " << seed;
  }
}

TEST(SealedFrame, RefusesALengthAboveTheLimitBeforeItIsThere) {
  Bytes header(kSealedHeaderBytes, std::byte{0xff});
  FrameOpener opener(secret_of(1));
  EXPECT_EQ(verdict(opener, header),
            "frame 0 announces 4294967295 bytes and exceeds the limit of 1048576");
  EXPECT_EQ(verdict(opener, header),
            "frame 0 announces 4294967295 bytes and exceeds the limit of 1048576")
      << "it stays broken";
}

TEST(SealedFrame, NoticesEveryBitThatIsChanged) {
  FrameSealer sealer(secret_of(1));
  const Bytes good = sealed(sealer, 3, payload_of(20, 9));
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    Bytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    FrameOpener opener(secret_of(1));
    const std::string text = verdict(opener, bad);
    // A longer length waits for bytes that never come: no frame either.
    EXPECT_TRUE(text.empty() || text.starts_with("frame 0 ")) << "bit " << bit << " " << text;
  }
}

TEST(SealedFrame, NoticesAFrameThatIsRepeatedLostOrOutOfOrder) {
  FrameSealer sealer(secret_of(1));
  const Bytes first = sealed(sealer, 0, payload_of(4, 1));
  const Bytes second = sealed(sealer, 0, payload_of(4, 2));
  FrameOpener repeated(secret_of(1));
  EXPECT_EQ(verdict(repeated, first), "frame ");
  EXPECT_EQ(verdict(repeated, first), "frame 1 was due, but frame 0 came");
  FrameOpener lost(secret_of(1));
  EXPECT_EQ(verdict(lost, second), "frame 0 was due, but frame 1 came");
}

TEST(SealedFrame, IsRefusedWithAnotherKey) {
  FrameSealer sealer(secret_of(1));
  FrameOpener opener(secret_of(2));
  EXPECT_EQ(verdict(opener, sealed(sealer, 0, payload_of(4, 1))),
            "frame 0 was changed on its way: its seal does not fit");
}

TEST(SealedDataHeader, ComesBackAndCountsUp) {
  DataSealer sealer(secret_of(1));
  DataOpener opener(secret_of(1));
  for (std::uint32_t i = 0; i < 5; ++i) {
    const DataHeader header{.bytes = i * 1000, .step = i, .operation = 1ull << 40};
    const auto opened = opener.open(sealer.seal(header));
    ASSERT_TRUE(opened.ok()) << opened.error().text;
    EXPECT_EQ(opened.value(), header);
  }
}

TEST(SealedDataHeader, IsRefusedWhenChangedOrRepeated) {
  DataSealer sealer(secret_of(1));
  const SealedDataHeader good = sealer.seal({.bytes = 7, .operation = 1});
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    SealedDataHeader bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    DataOpener opener(secret_of(1));
    EXPECT_FALSE(opener.open(bad).ok()) << "bit " << bit;
  }
  DataOpener opener(secret_of(1));
  ASSERT_TRUE(opener.open(good).ok());
  EXPECT_EQ(opener.open(good).error().text, "data header 1 was due, but header 0 came");
}

TEST(SealedDataHeader, TellsAnyOtherPayload) {
  DataSealer sealer(secret_of(1));
  DataOpener opener(secret_of(1));
  for (const std::size_t size : {1u, 15u, 16u, 17u, 4096u}) {
    const Bytes payload = payload_of(size, 3);
    ASSERT_TRUE(opener.open(sealer.seal({.operation = size}, payload)).ok());
    EXPECT_TRUE(opener.check(payload).ok());
    for (std::size_t bit = 0; bit<8 * size; bit += size> 100 ? 61 : 1) {
      Bytes changed = payload;
      changed[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      EXPECT_FALSE(opener.check(changed).ok()) << "bit " << bit << " of " << size << " bytes";
    }
    EXPECT_FALSE(opener.check(std::span(payload).first(size - 1)).ok());
  }
  // The same payload in another message has another tag.
  const Bytes payload = payload_of(16, 3);
  const SealedDataHeader first = sealer.seal({}, payload), second = sealer.seal({}, payload);
  ASSERT_TRUE(opener.open(first).ok() && opener.open(second).ok());
  EXPECT_TRUE(opener.check(payload).ok());
  constexpr std::size_t kTag = 24;
  EXPECT_FALSE(std::equal(first.begin() + kTag, first.end() - kSealBytes, second.begin() + kTag));
  // Where nobody authenticates there is none.
  ASSERT_TRUE(opener.open(sealer.seal({})).ok());
  const Status found = opener.check(payload);
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code, ErrorCode::kMalformed);
  EXPECT_EQ(found.error().text,
            "message 7 was changed on its way, or its sender changed the memory while it was sent: "
            "its tag does not fit");
}

TEST(SealedDataHeader, IsNoFrameThatWasSealedWithTheSameKey) {
  FrameSealer sealer(secret_of(1));
  const Bytes frame =
      sealed(sealer, 0, payload_of(kDataHeaderBytes - kSealedHeaderBytes - kSealBytes, 0));
  SealedDataHeader header;
  ASSERT_EQ(frame.size(), header.size());
  std::ranges::copy(frame, header.begin());
  EXPECT_FALSE(DataOpener(secret_of(1)).open(header).ok());
}

}  // namespace
}  // namespace ciranda
