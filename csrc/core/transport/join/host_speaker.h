#pragma once

#include <cstdint>
#include <vector>

#include "core/base/result.h"
#include "core/transport/local/local_mesh.h"
#include "core/wire/host_table.h"
#include "core/wire/introduction.h"

// While the hosts of a job meet (meeting.h), the first rank of each host speaks for all its ranks.
// With these functions the first rank and the other ranks of a host exchange messages through their
// local mesh. All of them block.
namespace ciranda {

// How long to wait.
struct SpeakerWait {
  std::uint64_t deadline_ns = 0;  // monotonic_ns
  int interrupt =
      -1;  // a descriptor that ends the wait with kShutdown when it is readable; -1: none
};

// Called by the first rank. Returns the introductions of all ranks of this host, its own first.
// Returns kTimeout at the deadline, or kRankLost if a rank has ended; both name the missing rank.
Result<std::vector<Introduction>> gather_host(const LocalMesh& mesh, const Introduction& self,
                                              const SpeakerWait& wait);

// Called by the first rank. tell_host() sends the other ranks the host table, refuse_host() sends
// the reason why the meeting failed. A rank that is gone does not keep the message from the
// remaining ranks; tell_host() returns the first error.
Status tell_host(const LocalMesh& mesh, const HostTable& host_table);
void refuse_host(const LocalMesh& mesh, const Error& why);

// Called by any other rank. Sends its introduction to the first rank and returns the host table.
// Returns kInvalidArgument with the first rank's reason if the meeting failed. That is kRankLost if
// it failed because a rank has ended or the first one was interrupted. Returns kRankLost, too, if
// the first rank has ended, and kTimeout if it has not answered shortly after the deadline.
Result<HostTable> let_first_speak(const LocalMesh& mesh, const Introduction& self,
                                  const SpeakerWait& wait);

}  // namespace ciranda
