#pragma once

#include <cstdint>
#include <vector>

#include "core/base/result.h"
#include "core/transport/local/local_mesh.h"
#include "core/wire/host_table.h"
#include "core/wire/introduction.h"

// While the hosts of a job meet (meeting.h), the first rank of each speaks for it: this is what it
// and the others say to each other, through their local mesh. All of it blocks.
namespace ciranda {

// The first rank: who is on this host, itself first. kTimeout at the deadline (monotonic_ns) or
// kRankLost name the rank that is missing.
Result<std::vector<Introduction>> gather_host(const LocalMesh& mesh, const Introduction& self,
                                              std::uint64_t deadline_ns);

// The first rank: tells the others what came of the meeting. One that is gone keeps no other from
// being told.
Status tell_host(const LocalMesh& mesh, const HostTable& host_table);
void refuse_host(const LocalMesh& mesh, const Error& why);

// Any other rank: introduces itself to the first, which keeps the time, and hears what came of it.
Result<HostTable> let_first_speak(const LocalMesh& mesh, const Introduction& self,
                                  std::uint64_t deadline_ns);

}  // namespace ciranda
