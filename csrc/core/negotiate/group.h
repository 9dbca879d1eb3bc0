#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/wire/introduction.h"
#include "core/wire/types.h"

namespace ciranda {

// Ranks that run operations among themselves (Horovod's process set). Immutable.
struct Group {
  GroupId id = kWorldGroup;
  std::vector<Rank> ranks;  // by their numbers in the World, ascending; not empty
  Hosts hosts;              // the members on each host of the job

  int size() const { return static_cast<int>(ranks.size()); }

  // Returns the index of `rank` in `ranks`; -1 if it is not a member. O(1) if the ranks are
  // contiguous, as in the World, else O(log size).
  int index_of(Rank rank) const {
    const auto straight = static_cast<std::size_t>(rank - ranks.front());
    if (straight < ranks.size() && ranks[straight] == rank) return static_cast<int>(straight);
    const auto at = std::lower_bound(ranks.begin(), ranks.end(), rank);
    return at != ranks.end() && *at == rank ? static_cast<int>(at - ranks.begin()) : -1;
  }
  bool contains(Rank rank) const { return index_of(rank) >= 0; }
};

}  // namespace ciranda
