#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/base/secret.h"
#include "core/transport/link/data_links.h"
#include "core/transport/local/local_mesh.h"
#include "core/transport/tcp/connection.h"
#include "core/transport/tcp/tcp.h"
#include "core/wire/introduction.h"

namespace ciranda {

// The place of every rank of the job, and this rank's connections to other hosts. A job on one host
// has one host and no connection.
struct RemoteMesh {
  Rank self = 0;
  int ranks = 1;                      // of the job
  int host = 0;                       // of this rank
  std::string address = "127.0.0.1";  // at which other hosts reach this rank
  Hosts hosts = {};
  DataLinks links = {};  // to any other rank, for data that does not go through shared memory
  // The first rank of a host carries the frames of its host. On host 0 it has a connection to the
  // first rank of every other host (by host - 1), on any other host one to rank 0. Empty on other
  // ranks.
  std::vector<ControlConnection> control = {};

  int size() const { return ranks; }
  const std::vector<Rank>& local_ranks() const { return hosts[static_cast<std::size_t>(host)]; }

  // Returns the mesh of a job of `size` ranks on one host.
  static RemoteMesh one_host(Rank self, int size);
};

// Arguments of join_remote().
struct RemoteJoin {
  Introduction self;  // without addresses
  std::string job_id;
  Epoch epoch = 0;       // number of earlier meetings of these processes
  Endpoint rendezvous;   // where rank 0 listens
  Fd listener = {};      // rank 0: opened by the starter, if valid
  std::string nic = {};  // see choose_addresses
  PortRange ports = {};
  std::vector<std::string> addresses = {};  // where to listen; empty: as `nic` says
  int streams = 1;                          // data links of each pair, at most kPairStreamsMax
  bool tls = false;                         // the same for all ranks
  std::uint64_t timeout_ms = 30'000;        // of the meeting, later of each call
  // Gets warnings, for example about strangers. Called from any thread.
  std::function<void(const std::string&)> warn = {};
  std::function<void(const std::string&)> tell = {};  // rank 0, once: gets the chosen addresses
};

// Lets the ranks of several hosts meet. The first rank of each host gathers the introductions of
// its ranks and sends them to rank 0, which listens at the rendezvous. Rank 0 sends the host table
// to every first rank, and that one passes it on to its host. Each host exchanges only two messages
// with rank 0, so thousands of ranks can start. The meeting makes no data links: a rank makes them
// later, when it needs them (DataLinks).
//
// Blocks for at most `timeout_ms` on the first rank of a host, half a second longer on other ranks.
// `local` connects the ranks of this host, which all must join. An Error names the missing ranks or
// the contradiction.
Result<RemoteMesh> join_remote(RemoteJoin join, const LocalMesh& local, const Secret& key);

}  // namespace ciranda
