// What could break: a length that is believed, a byte that is read past the end.
#include "core/wire/codec.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace ciranda {
namespace {

std::vector<std::byte> bytes(std::initializer_list<int> values) {
  std::vector<std::byte> out;
  for (const int value : values) out.push_back(static_cast<std::byte>(value));
  return out;
}

TEST(Writer, WritesTheLeastSignificantByteFirst) {
  std::vector<std::byte> out;
  Writer writer(out);
  writer.u64(0x0102030405060708);
  EXPECT_EQ(out, bytes({8, 7, 6, 5, 4, 3, 2, 1}));
}

TEST(Reader, GivesBackNumbersOfFixedLengthAndBytes) {
  std::vector<std::byte> out;
  Writer writer(out);
  writer.u16(0x0102);
  writer.u32(0x03040506);
  writer.bytes(bytes({7, 8}));
  EXPECT_EQ(out, bytes({2, 1, 6, 5, 4, 3, 7, 8}));
  Reader in(out);
  EXPECT_EQ(in.u16("short"), 0x0102);
  EXPECT_EQ(in.u32("long"), 0x03040506u);
  std::vector<std::byte> rest(2);
  in.bytes("rest", rest);
  EXPECT_EQ(rest, bytes({7, 8}));
  EXPECT_TRUE(in.ok());
  in.bytes("more", rest);
  EXPECT_EQ(rest, bytes({0, 0}));
  EXPECT_EQ(in.error().text, "more at byte 8 is cut off");
}

TEST(Reader, TakesNothingButZerosWhereNothingIsSaid) {
  const auto input = bytes({0, 0, 1});
  Reader in(input);
  in.zeros("reserved", 2);
  EXPECT_TRUE(in.ok());
  in.zeros("padding", 1);
  EXPECT_EQ(in.error().text, "padding at byte 2 is not zero");
}

TEST(Varint, ComesBackInAsManyBytesAsPromised) {
  for (int bit = 0; bit < 64; ++bit) {
    for (const std::uint64_t value : {1ull << bit, (1ull << bit) - 1, (1ull << bit) + 1}) {
      std::vector<std::byte> out;
      Writer(out).varint(value);
      EXPECT_EQ(out.size(), varint_bytes(value));
      EXPECT_LE(out.size(), kVarintBytesMax);
      Reader in(out);
      EXPECT_EQ(in.varint("value", std::numeric_limits<std::uint64_t>::max()), value);
      EXPECT_TRUE(in.ok());
      EXPECT_EQ(in.remaining(), 0u);
    }
  }
}

TEST(Varint, HasOneFormOnly) {
  const auto padded = bytes({0x81, 0x00});
  Reader in(padded);
  EXPECT_EQ(in.varint("value", 1000), 0u);
  EXPECT_EQ(in.error().text, "value at byte 0 is not in its shortest form");
}

TEST(Varint, IsAtMost64Bits) {
  const auto overflow = bytes({255, 255, 255, 255, 255, 255, 255, 255, 255, 2});
  Reader in(overflow);
  EXPECT_EQ(in.varint("value", std::numeric_limits<std::uint64_t>::max()), 0u);
  EXPECT_EQ(in.error().text, "value at byte 0 is longer than 64 bits");
}

TEST(Reader, RefusesAValueAboveTheCallersMaximum) {
  const auto input = bytes({5, 200, 1});
  Reader first(input);
  EXPECT_EQ(first.varint("small", 4), 0u);
  EXPECT_FALSE(first.ok());
  Reader second(input);
  EXPECT_EQ(second.varint("small", 5), 5u);
  EXPECT_EQ(second.varint("wide", 199), 0u);
  EXPECT_EQ(second.error().text, "wide at byte 1 is out of range");
}

TEST(Reader, NeverReadsPastTheEnd) {
  const auto input = bytes({0x80});
  EXPECT_EQ(Reader({}).varint("a", 9), 0u);
  EXPECT_EQ(Reader(input).varint("a", 9), 0u);
  EXPECT_EQ(Reader({}).u8("a", 9), 0u);
  EXPECT_EQ(Reader(input).u64("a"), 0u);
  EXPECT_EQ(Reader(input).text("a", 2), "");
}

TEST(Reader, RefusesACountThatTheRemainingBytesCannotHold) {
  const auto input = bytes({3, 0, 0, 0, 0, 0});
  Reader fits(input);
  EXPECT_EQ(fits.count("items", 10, 1), 3u);
  Reader too_many(input);
  EXPECT_EQ(too_many.count("items", 10, 2), 0u);
  EXPECT_EQ(too_many.error().code, ErrorCode::kMalformed);
  Reader above_cap(input);
  EXPECT_EQ(above_cap.count("items", 2, 1), 0u);
  EXPECT_FALSE(above_cap.ok());
}

TEST(Reader, KeepsItsFirstFaultAndGivesZerosAfterIt) {
  const auto input = bytes({9, 7, 7});
  Reader in(input);
  EXPECT_EQ(in.u8("first", 3), 0u);
  EXPECT_EQ(in.u8("second", 9), 0u);
  in.fail("third", "is bad");
  EXPECT_EQ(in.error().text, "first at byte 0 is out of range");
  EXPECT_EQ(in.remaining(), 0u);
}

TEST(Reader, GivesBackEveryDouble) {
  for (const double value : {0.0, -0.0, 1.5, -1e300, std::numeric_limits<double>::infinity()}) {
    std::vector<std::byte> out;
    Writer(out).f64(value);
    Reader in(out);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(in.f64("x")), std::bit_cast<std::uint64_t>(value));
  }
}

}  // namespace
}  // namespace ciranda
