#pragma once

#include <cstdint>

#include "core/plan/schedule.h"

namespace ciranda {

// What a schedule takes, predicted, to choose between algorithms. Whole numbers, so that every
// machine of a job computes the same from the same agreed figures.
//
// The model: a message of n bytes takes a + n*b, reducing n bytes takes n*g, links carry both
// directions at once, and nobody computes while it waits. With it (R. Thakur, R. Rabenseifner and
// W. Gropp, "Optimization of Collective Communication Operations in MPICH", International Journal
// of High Performance Computing Applications 19(1), 2005; the chain and the direct exchange follow
// in the same way), N participants, and m = floor(log2 N):
//
//   allreduce       ring    2(N-1) a + 2(N-1)/N n b + (N-1)/N n g
//                   short   r (a + n b + n g)    with r = m for N = 2^m, else the fold: m (a + n b
//                           + n g) + 2 (a + n b) + n g
//   reducescatter   ring    (N-1) a + (N-1)/N n b + (N-1)/N n g
//   broadcast       ring    (N-1) a + n b + (N-2) s b    with s bytes a segment
//                   short   ceil(log2 N) (a + n b)
//   allgather       ring    (N-1) a + (N-1)/N n b
//                   short   a + (N-1)/N n b
//   alltoall        short   a + (N-1)/N n b
//   barrier         short   ceil(log2 N) a
//
// where n is the payload (before b: divided by Collective::narrowing), of allgather and
// reducescatter all parts together, of alltoall the most that one participant sends. For 2
// participants the short allreduce is the quicker one up to 2a/g bytes, for 4 up to 4a / (b/2 +
// 5g/4).

// The slowest connection between participants; agreed by all of them.
struct LinkSpeed {
  std::uint64_t latency_ns = 30'000;  // one way, from one program to the other: TCP in one building
  std::uint64_t bytes_per_us = 1'250;          // 10 Gbit/s
  std::uint64_t reduced_bytes_per_us = 8'000;  // one core, from the caches
};

// Nanoseconds. Rates are at least 1.
std::uint64_t predict_ns(const Collective& collective, Algorithm algorithm, const LinkSpeed& link,
                         const Grain& grain = {});

// The quicker one. Allgather's short form, which never loses in the model but needs a connection
// between any two, is chosen only while waiting for the ring would take longer than moving the
// bytes.
Algorithm choose_algorithm(const Collective& collective, const LinkSpeed& link,
                           const Grain& grain = {});

}  // namespace ciranda
