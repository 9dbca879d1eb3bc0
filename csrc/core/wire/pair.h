#pragma once

#include "core/wire/types.h"

namespace ciranda {

// Two ranks, one of which sends messages to the other. They are a group from the start, without
// anybody's agreement: its number says who they are.
struct Pair {
  Rank from = kNoRank;
  Rank to = kNoRank;
};

inline constexpr GroupId kFirstPair = GroupId{1} << 31;  // numbers from here on are those of pairs
inline constexpr int kPairRankBits = 12;
static_assert(kRanksMax <= 1 << kPairRankBits, "both ranks fit a number");

constexpr bool is_pair(GroupId id) {
  return id >= kFirstPair;
}
// Of ranks below kRanksMax.
constexpr GroupId pair_id(Pair pair) {
  return kFirstPair | static_cast<GroupId>(pair.from) << kPairRankBits |
         static_cast<GroupId>(pair.to);
}
constexpr Pair pair_of(GroupId id) {
  constexpr GroupId kMask = (GroupId{1} << kPairRankBits) - 1;
  return {.from = static_cast<Rank>((id - kFirstPair) >> kPairRankBits),
          .to = static_cast<Rank>(id & kMask)};
}
// Whether these are two ranks of a World of that size.
constexpr bool is_in_world(Pair pair, int size) {
  return pair.from != pair.to && pair.from >= 0 && pair.from < size && pair.to >= 0 &&
         pair.to < size;
}

}  // namespace ciranda
