#pragma once

#include <algorithm>
#include <vector>

#include "core/backend/backend.h"
#include "core/negotiate/response.h"

namespace ciranda {

// What becomes of an operation while some of its members have joined, alike on all ranks. Pure.

inline bool has_joined(const FusedOp& op, Rank rank) {
  return std::binary_search(op.joined.begin(), op.joined.end(), rank);
}

// kUnsupported where it cannot run without them.
Status without_joined(const FusedOp& op);

// On one host those who are there reduce in the arena alone, and so do those of each host who share
// a step. Elsewhere each member has a part in it: the memory of all counts as private then. `here`:
// how many members are on this host.
bool leaves_arena(const FusedOp& op, std::size_t here);

// The part of a rank that has joined: it adds zeros to what the others reduce.
Execution of_zeros(FusedOp op, const std::vector<Response>& responses, std::size_t here);

}  // namespace ciranda
