#pragma once

#include <algorithm>
#include <vector>

#include "core/backend/backend.h"
#include "core/negotiate/response.h"

namespace ciranda {

// How an operation runs while some of its members have joined; the same on all ranks. Pure.

inline bool has_joined(const FusedOp& op, Rank rank) {
  return std::binary_search(op.joined.begin(), op.joined.end(), rank);
}

// Returns kUnsupported if the operation cannot run without the members that have joined.
Status without_joined(const FusedOp& op);

// Returns true if data in the arena must be treated as private memory because members have joined.
// The data stays in the arena in a shared step, and if the native backend runs a group of one host:
// the remaining members of a host then reduce it among themselves. Every other way needs all
// members. `here`: the number of members on this host.
bool leaves_arena(const FusedOp& op, std::size_t here);

// Returns the part of a rank that has joined: it contributes zeros to the reduction.
Execution of_zeros(FusedOp op, const std::vector<Response>& responses, std::size_t here);

}  // namespace ciranda
