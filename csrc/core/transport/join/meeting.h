#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/result.h"
#include "core/transport/dial/acceptor.h"
#include "core/transport/tcp/connection.h"
#include "core/transport/tcp/tcp.h"
#include "core/wire/handshake.h"
#include "core/wire/host_table.h"
#include "core/wire/introduction.h"

// How the hosts of a job meet. The first rank of each host sends the introductions of its ranks to
// rank 0, and rank 0 answers with the host table. Both functions block, until the deadline at most.
namespace ciranda {

struct Meeting {
  Endpoint rendezvous;            // where rank 0 listens
  std::uint64_t deadline_ns = 0;  // monotonic_ns
  std::uint64_t timeout_ms = 0;   // for error messages
  int interrupt = -1;             // ends the meeting with kShutdown when readable; -1: none
  // Called once if rank 0's host does not answer for Dialer::kUnansweredNs. The meeting goes on.
  std::function<void()> unanswered = {};
};

struct MetHosts {
  HostTable host_table;
  std::vector<ControlConnection>
      control;  // rank 0: one to each other host, by host - 1; else one to rank 0
};

// Runs the meeting on rank 0. `host` has the introductions of its host's ranks, its own first. An
// Error names the missing ranks or the contradiction. Every host that has called gets it too.
Result<MetHosts> lead_meeting(const Meeting& meeting, Acceptor& acceptor,
                              std::vector<Introduction> host);

// Takes part as the first rank of another host. `host` has the introductions of its ranks, its own
// first. This function sets the purpose and the receiver of `self`.
Result<MetHosts> follow_meeting(const Meeting& meeting, const ConnectionKeys& keys, Hello self,
                                std::vector<Introduction> host);

}  // namespace ciranda
