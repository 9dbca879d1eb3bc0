#pragma once

#include <cstdint>

#include "core/plan/schedule.h"

namespace ciranda {

// Predicts how long a schedule takes, to choose between algorithms. It computes in whole numbers,
// so that every machine of a job gets the same result from the same agreed figures.
//
// The model: a message of n bytes takes a + n*b, reducing n bytes takes n*g, links carry both
// directions at once, and nobody computes while it waits. R. Thakur, R. Rabenseifner and W. Gropp,
// "Optimization of Collective Communication Operations in MPICH", International Journal of High
// Performance Computing Applications 19(1), 2005, derive the figures from it; those of the chain
// and the direct exchange follow in the same way. For N participants and m = floor(log2 N):
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
// where n is the payload in bytes: for allgather and reducescatter the parts together, for alltoall
// the most that one participant sends. The terms with b use n divided by Collective::narrowing. For
// 2 participants the short allreduce is faster up to 2a/g bytes, for 4 up to 4a / (b/2 + 5g/4).

// Speed of the slowest connection between participants; all of them agree on it.
struct LinkSpeed {
  std::uint64_t latency_ns = 30'000;  // one way, from one program to the other: TCP in one building
  std::uint64_t bytes_per_us = 1'250;          // 10 Gbit/s
  std::uint64_t reduced_bytes_per_us = 8'000;  // one core, from the caches
};

// Returns the predicted time in nanoseconds. The rates of `link` must be at least 1.
std::uint64_t predict_ns(const Collective& collective, Algorithm algorithm, const LinkSpeed& link,
                         const Grain& grain = {});

// Returns the faster algorithm. Allgather's short form never loses in the model, but it needs a
// connection between any two participants. So it is chosen only while waiting for the ring would
// take longer than moving the bytes.
Algorithm choose_algorithm(const Collective& collective, const LinkSpeed& link,
                           const Grain& grain = {});

}  // namespace ciranda
