#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/secret.h"
#include "core/transport/connection.h"
#include "core/transport/fd.h"
#include "core/transport/tcp.h"
#include "core/wire/introduction.h"
#include "core/wire/sealed.h"

namespace ciranda {

// A socket of which news is waited for.
struct Watched {
  int socket = -1;
  bool readable = false;
  bool writable = false;
};

// A proven connection for data: sealed headers, each followed by the bytes it announces.
struct DataLink {
  explicit DataLink(ProvenSocket socket)
      : fd(std::move(socket.fd)),
        peer(socket.session.peer),
        address(std::move(socket.address)),
        sealer(std::move(socket.session.send_key)),
        opener(std::move(socket.session.receive_key)) {}

  Fd fd;  // non-blocking
  Rank peer;
  std::string address;
  DataHeaderSealer sealer;
  DataHeaderOpener opener;
};

// Who is where, and what connects this rank to ranks of other hosts. For a job on one host: one
// host, no connection.
struct RemoteMesh {
  Rank self = 0;
  int host = 0;  // of this rank
  Hosts hosts = {};
  // By rank, then by stream; empty for oneself.
  std::vector<std::vector<DataLink>> data = {};
  // The first rank of a host carries its frames: on host 0 a connection to that of every other
  // host (by host - 1), there one to rank 0. Empty on other ranks.
  std::vector<ControlConnection> control = {};

  int size() const { return static_cast<int>(data.size()); }
  const std::vector<Rank>& local_ranks() const { return hosts[static_cast<std::size_t>(host)]; }

  // `size` ranks on one host.
  static RemoteMesh one_host(Rank self, int size);
};

// How the ranks of several hosts meet. Rank 0 listens where everybody expects it, hears who is
// where, and tells everybody; then each pair of ranks is connected.
struct RemoteJoin {
  Introduction self;  // without addresses
  std::string job_id;
  Endpoint rendezvous;   // where rank 0 listens
  Fd listener = {};      // rank 0: there already, opened by the starter
  std::string nic = {};  // see choose_addresses
  PortRange ports = {};
  std::vector<std::string> addresses = {};  // instead of this machine's own
  int streams = 1;                          // connections of a pair, at most kLanesMax
  std::uint64_t timeout_ms = 30'000;
};

// Blocking, at most `timeout_ms`. Every error names who is missing or what contradicts what.
Result<RemoteMesh> join_remote(RemoteJoin join, const Secret& key);

}  // namespace ciranda
