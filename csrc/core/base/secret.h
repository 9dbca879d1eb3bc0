#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>

#include "core/base/result.h"

struct evp_cipher_ctx_st;

namespace ciranda {

// 32 bytes that only the processes of one job know. They lie on their own page, which the kernel
// leaves out of core dumps and wipes in a forked child (if it can). The destructor wipes them. A
// Secret moves and never copies. Nothing prints it and no Error quotes it.
//
// Const members are thread-safe.
class Secret {
 public:
  static constexpr std::size_t kBytes = 32;

  // Takes over the key and wipes `bytes`. kSystem if the kernel gives no page.
  static Result<Secret> take(std::span<std::byte, kBytes> bytes);

  Secret(Secret&& other) noexcept;
  Secret& operator=(Secret&& other) noexcept;
  ~Secret();

  // Derives another key by HKDF-SHA256 (RFC 5869), which does not reveal this one. kUnsupported if
  // libcrypto lacks an algorithm.
  Result<Secret> derive(std::span<const std::byte> salt, std::span<const std::byte> info) const;

  // Returns false in a forked child, where the kernel has wiped the page: the key must prove
  // nothing there.
  bool intact() const;

  // For libcrypto's primitives only. Asserts intact().
  std::span<const std::byte, kBytes> bytes() const;

 private:
  explicit Secret(std::byte* page) : page_(page) {}
  void drop();

  std::byte* page_;  // null once moved from
};

// HMAC-SHA256 of the concatenated pieces.
using MacTag = std::array<std::byte, 32>;
MacTag hmac_sha256(const Secret& key, std::initializer_list<std::span<const std::byte>> pieces);

// Computes AES-128-GMAC (NIST SP 800-38D) of numbered messages under a key that is derived from a
// Secret. It takes one pass over the bytes with the processor's own instructions, several times as
// fast as a hash. libcrypto keeps the derived key in its own memory. Not thread-safe.
class MessageMac {
 public:
  using Tag = std::array<std::byte, 16>;

  MessageMac(const Secret& key, std::string_view label);
  MessageMac(MessageMac&&) noexcept = default;
  MessageMac& operator=(MessageMac&&) noexcept = default;

  // Each number must belong to one message only: two tags with one number would reveal the key.
  Tag tag(std::uint64_t number, std::span<const std::byte> message);
  // The same for a message in consecutive pieces.
  using Piece = std::span<const std::byte>;
  Tag tag(std::uint64_t number, std::span<const Piece> pieces);

 private:
  struct Free {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  std::unique_ptr<evp_cipher_ctx_st, Free> context_;
};

// SHA-256.
using Digest = std::array<std::byte, 32>;
Digest sha256(std::span<const std::byte> bytes);

// Compares in a time that depends only on the length.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

// Overwrites memory that held a secret, even if the compiler sees no later use of it.
void wipe(std::span<std::byte> bytes);

}  // namespace ciranda
