#pragma once

#include <cstdint>
#include <string>

#include "core/base/result.h"
#include "core/transport/local/local_mesh.h"

namespace ciranda {

// Blocking; at most `timeout_ms`. The ranks of one job and host meet at the Unix socket
// `folder`/local, which rank 0 makes; `folder` must be private (mode 0700, same user), is created
// when missing, and the socket is unlinked as soon as all are connected: nothing is left behind.
// Rank 0 refuses a wrong size, a rank that came twice, another job, version, user or setting, and
// says so to every rank. A second rank 0 is refused as long as the first one's mesh lives.
struct UnixJoin {
  std::string folder;
  std::string job_id;
  Rank rank = 0;
  int size = 1;
  std::uint64_t timeout_ms = 30'000;
  std::string settings = {};       // see wire/settings.h; of all ranks, where all are on this host
  std::string rank_variable = {};  // which tells a rank's number
  // Ranks must show that they are of one job, see check_same_job(); else the folder does.
  bool prove_origin = false;
  // They have met before: who comes back waits for a rank 0 that is not through with that yet.
  bool again = false;
};
Result<LocalMesh> join_unix(const UnixJoin& join);

}  // namespace ciranda
