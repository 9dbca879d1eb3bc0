#pragma once

#include <cstddef>
#include <cstdint>

#include "core/wire/types.h"

namespace ciranda::member {

// Who trains on which samples of a pass over the data: each sample counts once, whatever ranks come
// and go.

// The samples of a pass, and how they are dealt.
struct Deal {
  std::size_t samples = 0;
  std::size_t batch = 1;   // of each rank, at least 1
  bool drop_last = false;  // leaves out a rest that does not give each rank a whole batch
};

// Returns how many samples all ranks together train on in the next block; 0 at the end. `done`
// samples of the pass are trained on. A rest that is too small to give each of the `size` ranks a
// sample goes with the block before it, so that no rank ever has an empty batch.
std::size_t samples_of_block(const Deal& deal, std::size_t done, std::size_t size);

// Positions in a block, from `begin` to before `end`.
struct Share {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool operator==(const Share&) const = default;
};

// Returns the rank's share of a block of `count` samples, at least 1. The first ranks have one
// sample more if `count` does not divide. If there are fewer samples than ranks, which is possible
// only at the end of a pass, ranks repeat a sample.
Share share_of_block(std::size_t count, Rank rank, std::size_t size);

// Returns the seed of a rank's random numbers in the block at position `done` of pass `pass`. A
// rank that takes another's place draws the same numbers.
std::uint32_t seed_of_block(std::uint64_t seed, std::uint64_t pass, std::size_t done, Rank rank);

}  // namespace ciranda::member
