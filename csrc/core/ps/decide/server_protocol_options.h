#pragma once

#include <cstdint>
#include <string>

namespace ciranda::ps {

struct ServerProtocolOptions {
  std::string job_id;
  int server = 0;
  int servers = 1;
  int workers = 1;
  // A worker that has been silent for this long keeps nobody waiting.
  std::uint64_t lease_ns = 10'000'000'000;
  bool keeps_state = false;  // see Welcome
  bool resumes = false;      // may continue from the state of another job, which is over
  // The job has one more process, which gives tasks to the workers: see Enter, TaskProtocol.
  bool has_coordinator = false;
  // Server 0 announces a checkpoint this many pushes (kSync: rounds) or this long after the
  // previous one, whichever comes first. 0: not for that reason.
  std::uint64_t checkpoint_pushes = 0;
  std::uint64_t checkpoint_ns = 0;
};

}  // namespace ciranda::ps
