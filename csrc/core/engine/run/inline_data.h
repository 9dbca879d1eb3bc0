#pragma once

#include <vector>

#include "core/backend/backend.h"
#include "core/negotiate/response.h"

namespace ciranda {

// A few bytes of data travel in the Requests themselves. A rank that has read all Requests then has
// all ranks' data, and need not wait a second time. Pure.

// Returns true if a tensor of this spec travels in the Request. Only for ranks on one host.
bool may_travel_inline(const RequestSpec& spec);

// Returns true if all data of the operation has arrived in its Requests. The answer is the same on
// every rank.
bool came_inline(const FusedOp& op, const std::vector<Response>& responses);

// Reduces such data into this rank's `buffers`.
void reduce_inline(const FusedOp& op, const std::vector<Response>& responses,
                   const Buffers& buffers);

}  // namespace ciranda
