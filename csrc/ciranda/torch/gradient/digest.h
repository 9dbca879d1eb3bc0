#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ciranda {

// Of what is in memory, to tell whether it has changed or is elsewhere the same: by no enemy, and
// as fast as it is read.
std::uint64_t digest_of(std::span<const std::byte> bytes);

// Of two words.
std::uint64_t mixed(std::uint64_t digest, std::uint64_t word);

}  // namespace ciranda
