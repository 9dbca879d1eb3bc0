#pragma once

#include "core/wire/types.h"

namespace ciranda {

// Two ranks, one of which sends messages to the other. Each pair is a group from the start, without
// negotiation, because the group's number encodes both ranks.
struct Pair {
  Rank from = kNoRank;
  Rank to = kNoRank;
};

inline constexpr GroupId kFirstPair = GroupId{1} << 31;  // this number and all above it are pairs
inline constexpr int kPairRankBits = 12;
static_assert(kRanksMax <= 1 << kPairRankBits, "both ranks fit a number");

constexpr bool is_pair(GroupId id) {
  return id >= kFirstPair;
}
// Both ranks must be below kRanksMax.
constexpr GroupId pair_id(Pair pair) {
  return kFirstPair | static_cast<GroupId>(pair.from) << kPairRankBits |
         static_cast<GroupId>(pair.to);
}
constexpr Pair pair_of(GroupId id) {
  constexpr GroupId kMask = (GroupId{1} << kPairRankBits) - 1;
  return {.from = static_cast<Rank>((id - kFirstPair) >> kPairRankBits),
          .to = static_cast<Rank>(id & kMask)};
}
// Returns true if the pair is two different ranks of a World of `size` ranks.
constexpr bool is_in_world(Pair pair, int size) {
  return pair.from != pair.to && pair.from >= 0 && pair.from < size && pair.to >= 0 &&
         pair.to < size;
}

}  // namespace ciranda
