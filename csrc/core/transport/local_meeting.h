#pragma once

#include <cstdint>
#include <string>

#include "core/base/result.h"
#include "core/transport/local_mesh.h"

namespace ciranda {

// Blocking; at most `timeout_ms`. The ranks of one job and host meet at the Unix socket
// `folder`/local, which rank 0 makes; `folder` must be private (mode 0700, same user), is created
// when missing, and the socket is unlinked as soon as all are connected: nothing is left behind.
// Rank 0 refuses a wrong size, a rank that came twice, another job, version, user or setting, and
// says so to every rank. A second rank 0 is refused as long as the first waits in the folder.
struct UnixJoin {
  std::string folder;
  std::string job_id;
  Rank rank = 0;
  int size = 1;
  std::uint64_t timeout_ms = 30'000;
  std::string settings = {};  // see wire/settings.h; of all ranks, where all are on this host
};
Result<LocalMesh> join_unix(const UnixJoin& join);

}  // namespace ciranda
