#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "wire/keys.h"

// Fuzz targets read their input as a script: numbers first, then what is left.
namespace ciranda::fuzz {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : Input(std::as_bytes(std::span(data, size))) {}
  explicit Input(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool empty() const { return rest_.empty(); }
  std::span<const std::byte> rest() const { return rest_; }
  std::uint8_t u8() {
    const auto taken = bytes(1);
    return taken.empty() ? std::uint8_t{0} : std::to_integer<std::uint8_t>(taken[0]);
  }
  std::uint16_t u16() {
    const std::uint8_t low = u8();
    return static_cast<std::uint16_t>(low | u8() << 8);
  }
  // At most as many as are left.
  std::span<const std::byte> bytes(std::size_t size) {
    const auto taken = rest_.first(std::min(size, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  // Flips bits of `target`: the rest is pairs of a place and a mask.
  void patch(std::span<std::byte> target) {
    while (!empty() && !target.empty()) {
      const std::size_t place = u16() % target.size();
      target[place] ^= static_cast<std::byte>(u8());
    }
  }

 private:
  std::span<const std::byte> rest_;
};

// Made once: deriving keys would be most of the work.
inline const ConnectionKeys& keys() {
  static const ConnectionKeys kKeys = test::keys_of();
  return kKeys;
}

inline const Hello kClient{.from = 2, .to = 0, .incarnation = 9, .nonce = test::nonce_of(10)};
inline constexpr ServerHandshake::Side kServer{.self = 0, .incarnation = 7, .ranks = 4};

// Hands `bytes` to one side of a handshake, at most `piece` at a time. What it answers goes to
// `out`; false once it has refused.
template <typename Side>
bool feed(Side& side, std::span<const std::byte> bytes, std::size_t piece,
          std::vector<std::byte>& out) {
  while (!bytes.empty() && side.wanted() > 0) {
    const std::size_t size = std::min({piece, bytes.size(), side.wanted()});
    const std::size_t said = out.size();
    if (!side.receive(bytes.first(size), out).ok()) {
      CIRANDA_ASSERT(out.size() == said);  // silence for a stranger
      return false;
    }
    bytes = bytes.subspan(size);
  }
  return true;
}

// A script of a handshake: who speaks, how many bytes arrive at a time, and what is said.
using Speaker = void (*)(Input& input, std::size_t piece);
inline int play(Input input, Speaker stranger, Speaker rank) {
  const bool is_rank = input.u8() % 2 == 1;
  const std::size_t piece = 1u + input.u8();
  (is_rank ? rank : stranger)(input, piece);
  return 0;
}

}  // namespace ciranda::fuzz
