#pragma once

#include <cstdint>
#include <string>

#include "core/base/result.h"
#include "core/transport/local/local_mesh.h"

namespace ciranda {

// Arguments of join_unix().
struct UnixJoin {
  std::string folder;
  std::string job_id;
  Rank rank = 0;
  int size = 1;
  std::uint64_t timeout_ms = 30'000;
  std::string settings = {};       // see wire/settings.h; empty: the job has several hosts
  std::string rank_variable = {};  // environment variable with a rank's number
  // True: rank 0 checks the origin of every rank (check_same_job()). False: whoever knows the
  // folder is of this job.
  bool prove_origin = false;
  // The ranks have met before. Rank 0 may still hold the folder for that meeting, so this rank
  // waits for it.
  bool again = false;
  // A descriptor that ends the meeting with kShutdown as soon as it is readable; -1: none. In an
  // elastic job it is the socket to the arbiter, which may name other ranks meanwhile.
  int interrupt = -1;
};
// Lets the ranks of one job and host meet at the Unix socket `folder`/local, which rank 0 creates.
// Blocks for at most `timeout_ms` on rank 0, a second longer on other ranks. `folder` must be
// private (mode 0700, same user) and is created if missing. The socket is unlinked when all ranks
// are connected.
//
// Rank 0 turns away a caller of another user or job and waits on. A wrong size or rank number, a
// rank that comes twice, another version or another setting ends the meeting with an error on every
// rank that has come. A second rank 0 gets an error as long as the first one's mesh lives.
Result<LocalMesh> join_unix(const UnixJoin& join);

}  // namespace ciranda
