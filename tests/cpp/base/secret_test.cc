// What could break: a key that outlives its owner, reaches a child or a dump, or derives otherwise
// than the standard says.
#include "core/base/secret.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <type_traits>

namespace ciranda {
namespace {

static_assert(!std::is_copy_constructible_v<Secret> && !std::is_copy_assignable_v<Secret>);

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

Secret counting_from(int first) {
  std::array<std::byte, Secret::kBytes> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(first + static_cast<int>(i));
  }
  return Secret::take(bytes).value();
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += "0123456789abcdef"[static_cast<int>(byte) >> 4];
    text += "0123456789abcdef"[static_cast<int>(byte) & 15];
  }
  return text;
}

// The VmFlags line of the mapping that holds `address`.
std::string vm_flags_of(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    std::istringstream head(line);
    if (head >> std::hex >> begin >> dash >> end && dash == '-') {
      inside = begin <= wanted && wanted < end;
    } else if (inside && line.starts_with("VmFlags:")) {
      return line + " ";
    }
  }
  return "";
}

TEST(Secret, WipesTheBytesItTakesOver) {
  std::array<std::byte, Secret::kBytes> bytes;
  bytes.fill(std::byte{7});
  const auto secret = Secret::take(bytes);
  EXPECT_EQ(bytes, (std::array<std::byte, Secret::kBytes>{}));
  EXPECT_TRUE(
      std::ranges::all_of(secret.value().bytes(), [](auto b) { return b == std::byte{7}; }));
}

TEST(Secret, IsGoneWhereItWasMovedFrom) {
  Secret first = counting_from(1);
  Secret second = std::move(first);
  EXPECT_FALSE(first.intact());  // NOLINT: that is what is asked
  EXPECT_TRUE(second.intact());
  second = counting_from(2);
  EXPECT_EQ(second.bytes()[0], std::byte{2});
}

TEST(Secret, DigestsAreThoseOfFips180) {
  EXPECT_EQ(hex(sha256(bytes_of("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Secret, DerivesAsRfc5869Says) {
  // Computed with Python's hmac: extract, then one round of expand.
  const auto derived = counting_from(0).derive(bytes_of("salt"), bytes_of("info"));
  EXPECT_EQ(hex(derived.value().bytes()),
            "64cc2a23b7a1da4310420350405fdf5d632cb9bda3700d753e96cbcfeb81d449");
}

TEST(Secret, DerivesAnotherKeyForAnotherSaltOrPurpose) {
  const Secret key = counting_from(0);
  const auto derive = [&](std::string_view salt, std::string_view info) {
    return hex(key.derive(bytes_of(salt), bytes_of(info)).value().bytes());
  };
  EXPECT_EQ(derive("a", "control"), derive("a", "control"));
  EXPECT_NE(derive("a", "control"), derive("a", "data"));
  EXPECT_NE(derive("a", "control"), derive("b", "control"));
}

TEST(Secret, StaysOutOfCoreDumps) {
  const Secret key = counting_from(0);
  const std::string flags = vm_flags_of(key.bytes().data());
  EXPECT_NE(flags.find(" dd "), std::string::npos) << flags;
}

TEST(Secret, IsUselessInAForkedChild) {
  const Secret key = counting_from(0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(key.intact() ? 1 : 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(key.intact()) << "the parent keeps it";
}

TEST(HmacSha256, GivesTheTagOfRfc4231) {
  std::array<std::byte, Secret::kBytes> bytes{};  // HMAC pads a shorter key with zeros
  std::fill_n(bytes.begin(), 20, std::byte{0x0b});
  const Secret key = Secret::take(bytes).value();
  EXPECT_EQ(hex(hmac_sha256(key, {bytes_of("Hi There")})),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac_sha256(key, {bytes_of("Hi"), {}, bytes_of(" There")}),
            hmac_sha256(key, {bytes_of("Hi There")}));
}

// Computed by the formulas of NIST SP 800-38D in Python, with AES as the only primitive.
TEST(MessageMac, IsGmacOfTheMessageAndItsNumber) {
  MessageMac mac(counting_from(0), "label");
  EXPECT_EQ(hex(mac.tag(0, bytes_of("a"))), "62fc7a2f04088d7254a9f73693c7c868");
  EXPECT_EQ(hex(mac.tag(0x0102030405060708, bytes_of("some bytes of a tensor"))),
            "610d2de8a502dc4264c058ac4df8d9e2");
  EXPECT_EQ(hex(mac.tag(0, bytes_of("a"))), "62fc7a2f04088d7254a9f73693c7c868")
      << "nothing stays of the message before";
  MessageMac other(counting_from(0), "another");
  EXPECT_NE(mac.tag(0, bytes_of("a")), other.tag(0, bytes_of("a")));
}

TEST(EqualInConstantTime, ComparesEveryByteAndTheLength) {
  EXPECT_TRUE(equal_in_constant_time(bytes_of("abc"), bytes_of("abc")));
  EXPECT_FALSE(equal_in_constant_time(bytes_of("abc"), bytes_of("abd")));
  EXPECT_FALSE(equal_in_constant_time(bytes_of("abc"), bytes_of("ab")));
}

}  // namespace
}  // namespace ciranda
