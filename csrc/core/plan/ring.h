#pragma once

#include "core/plan/schedule.h"

namespace ciranda {

// Schedules for many bytes. Each participant sends to the next one (self + 1) and receives from the
// previous one, so that every link carries data all the time in both directions.
//
// allreduce  N blocks, 2(N-1) rounds. Each participant sends block self-t in round t and
//            receives block self-t-1. The first N-1 rounds reduce the received block with the
//            participant's input, then the finished blocks go around. 2(N-1)/N of the payload
//            leaves each participant: no algorithm sends less (Patarasuk and Yuan, 2009).
//            Same bits: block b is reduced once, along one chain: ((in_b + in_b+1) + …) + in_b-1.
// reducescatter  the first half, one block further, so that block b is finished at b.
// allgather  the second half.
// broadcast  a chain root, root+1, …: each participant passes a segment on when it has arrived.
//
// A round has one step for each segment. The send of a segment waits for the receive of the same
// segment in the round before. No receive overwrites bytes that are still to be read: a finished
// block arrives only after the next participant has received the partial block that left from the
// same place. Only the scratch of reducescatter, two blocks that take turns, has to wait for its
// sends.

Extent ring_extent(const Layout& layout);
Step ring_step(const Layout& layout, int channel, std::uint32_t index);
Piece ring_chunk(const Layout& layout, int channel, std::uint32_t index);

}  // namespace ciranda
