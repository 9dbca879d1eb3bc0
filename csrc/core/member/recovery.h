#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/wire/types.h"

namespace ciranda::member {

// What a member says when an epoch begins.
struct Standing {
  // It holds the state of the training: it has formed an epoch since it started.
  bool holds_state = false;
  // How many things its program has completed: blocks, and passes over the data. All members run
  // the same sequence, so that a greater moment is a newer state.
  std::uint64_t moment = 0;
  bool operator==(const Standing&) const = default;
};

// How the members of an epoch come to hold the same state.
struct RecoveryPlan {
  // Every other rank that lacks its state gets a copy, as it was when the plan was made: the source
  // may come to the end of a pass while others still copy.
  Rank source = 0;
  std::uint64_t moment = 0;  // of the source, and of all members in the end
  // Ranks that hold an older state. A rank keeps it until it has the whole new one, since the
  // source may die before.
  std::vector<Rank> behind;
  std::vector<Rank> newcomers;  // ranks that hold no state
  bool operator==(const RecoveryPlan&) const = default;
};

// Makes the plan from the standing of each rank. It is the same on all ranks. The source is the
// lowest rank that holds the newest state; rank 0 if nobody holds any. `standings` is not empty.
RecoveryPlan plan_recovery(std::span<const Standing> standings);

}  // namespace ciranda::member
