#pragma once

#include <cstdint>
#include <vector>

#include "core/base/result.h"
#include "core/transport/dial/acceptor.h"
#include "core/transport/tcp/connection.h"
#include "core/transport/tcp/tcp.h"
#include "core/wire/handshake.h"
#include "core/wire/host_table.h"
#include "core/wire/introduction.h"

// How the hosts of a job meet: the first rank of each tells rank 0 who is there, and rank 0, which
// hears them all, tells each of them who is where. All of it blocks, until the deadline.
namespace ciranda {

struct Meeting {
  Endpoint rendezvous;            // where rank 0 listens
  std::uint64_t deadline_ns = 0;  // monotonic_ns
  std::uint64_t timeout_ms = 0;   // for sentences
};

struct MetHosts {
  HostTable host_table;
  std::vector<ControlConnection>
      control;  // rank 0: to each other host, by host - 1; else to rank 0
};

// Rank 0, for the ranks of `host`: hears every host, then tells every host. Every Error names who
// is missing or what contradicts what; a contradiction is told to all.
Result<MetHosts> lead_meeting(const Meeting& meeting, Acceptor& acceptor,
                              std::vector<Introduction> host);

// The first rank of another host, for the ranks of `host`. `self` may lack what it calls and whom.
Result<MetHosts> follow_meeting(const Meeting& meeting, const ConnectionKeys& keys, Hello self,
                                std::vector<Introduction> host);

}  // namespace ciranda
