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

// The environment variables of a starter. A starter counts as found when `rank` and `size` are set.
struct Starter {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* job;             // tells two jobs of one user apart
  const char* step = nullptr;  // where a job has several worlds: which one
  const char* cross_rank = nullptr;
  const char* cross_size = nullptr;
  const char* hosts = nullptr;  // their names; rank 0 is on the first
};

// Whoever started this process: ciranda run, torchrun, horovodrun, mpirun (Open MPI), MPICH/PMI,
// srun, in this order; null without any.
const Starter* find_starter(const Environment& env);

// kUnsupported: it does not tell where this rank is.
Status read_rank_info(const Environment& env, const Starter& starter, RankInfo& rank_info);

}  // namespace ciranda
