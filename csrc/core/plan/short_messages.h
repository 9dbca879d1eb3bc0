#pragma once

#include "core/plan/schedule.h"

namespace ciranda {

// Schedules for few bytes, where the number of half round trips determines the time.
//
// allreduce  Recursive doubling: in round k each participant exchanges all it has with
//            self XOR 2^k, and both reduce. 2 participants are done after one half round trip,
//            N = 2^m after m. If N > 2^m, each of the last N - 2^m participants hands its input to
//            one of the first 2^m before, and gets the result after: two half round trips more.
//            Same bits: before round k each set of 2^k participants holds the same bits. Two sets
//            join with the operand of the lower one first on both sides.
// broadcast  Binomial tree: in round k the first 2^k (counted from the root) send to as many more.
// allgather, alltoall  Direct: in round t each participant sends to self+t and receives from
//            self-t. No round waits for another, so it takes one half round trip, and no link
//            carries two messages of a round.
// barrier    Dissemination (Hensgen, Finkel, Manber, 1988): in round k each participant sends a
//            byte to self+2^k and receives one from self-2^k. After ceil(log2 N) rounds each has
//            heard, directly or not, from all.
//
// A round of recursive doubling overwrites with its result the bytes that it sends. So a receive is
// applied only when the send of the same step has left.

Extent short_extent(const Layout& layout);
Step short_step(const Layout& layout, int channel, std::uint32_t index);
Piece short_chunk(const Layout& layout, int channel, std::uint32_t index);

}  // namespace ciranda
