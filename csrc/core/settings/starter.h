#pragma once

#include "core/base/result.h"
#include "core/settings/environment.h"

namespace ciranda {

// This rank's numbers in the job, as its starter gave them.
struct RankInfo {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int cross_rank = 0;
  int cross_size = 1;
};

// The environment variables of a starter. A starter is found if `rank` and `size` are set.
struct Starter {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* job;             // tells two jobs of one user apart
  const char* step = nullptr;  // which of the several Worlds of a job
  const char* cross_rank = nullptr;
  const char* cross_size = nullptr;
  const char* hosts = nullptr;  // their names; rank 0 is on the first
};

// Returns the starter of this process: the first of ciranda run, torchrun, horovodrun, mpirun (Open
// MPI), MPICH/PMI and srun that is found, or null.
const Starter* find_starter(const Environment& env);

// Reads this rank's numbers. Returns kUnsupported if the starter does not tell which host the rank
// is on.
Status read_rank_info(const Environment& env, const Starter& starter, RankInfo& rank_info);

}  // namespace ciranda
