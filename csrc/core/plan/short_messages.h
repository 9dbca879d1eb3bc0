#pragma once

#include "core/plan/schedule.h"

namespace ciranda {

// Schedules for few bytes, where half round trips are what costs.
//
// allreduce  Recursive doubling: in round k everybody exchanges all it has with self XOR 2^k, and
//            both reduce; 2 participants are done after one half round trip, N = 2^m after m. Of
//            the N - 2^m others each hands its input to one of the first participants before, and
//            gets the result after: two half round trips more.
//            Same bits: before round k all members of a group of 2^k hold the same bits; two
//            groups join with the operand of the lower one first on both sides.
// broadcast  Binomial tree: in round k the 2^k first (counted from the root) send to as many.
// allgather, alltoall  Direct: in round t everybody sends to self+t and receives from self-t. No
//            round waits for another, so it takes one half round trip and no link is hit twice at
//            a time.
// barrier    Dissemination (Hensgen, Finkel, Manber, 1988): in round k a byte goes to self+2^k and
//            one comes from self-2^k; after ceil(log2 N) rounds everybody has heard of everybody.
//
// What a round of recursive doubling reads to send it also overwrites with the result, so a
// receive is applied only when the send of the same step has left.

Extent short_extent(const Layout& layout);
Step short_step(const Layout& layout, int channel, std::uint32_t index);
Piece short_chunk(const Layout& layout, int channel, std::uint32_t index);

}  // namespace ciranda
