#pragma once

#include <vector>

#include "core/backend/backend.h"
#include "core/negotiate/response.h"

namespace ciranda {

// Few bytes travel in the requests themselves: who has read those has all ranks' data, and waits
// for nobody a second time. Pure.

// Whether this rank puts its tensor into its request. Where the ranks are on one host.
bool may_travel_inline(const RequestSpec& spec);

// Whether all data of the operation came in this way; the same on every rank.
bool came_inline(const FusedOp& op, const std::vector<Response>& responses);

// Then: reduces it into this rank's `buffers`.
void reduce_inline(const FusedOp& op, const std::vector<Response>& responses,
                   const Buffers& buffers);

}  // namespace ciranda
