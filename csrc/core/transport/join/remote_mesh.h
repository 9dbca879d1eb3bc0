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

// Who is where, and what connects this rank to ranks of other hosts. For a job on one host: one
// host, no connection.
struct RemoteMesh {
  Rank self = 0;
  int ranks = 1;                      // of the job
  int host = 0;                       // of this rank
  std::string address = "127.0.0.1";  // at which other hosts reach this rank
  Hosts hosts = {};
  DataLinks links = {};  // to any other rank, where no memory is shared
  // The first rank of a host carries its frames: on host 0 a connection to that of every other
  // host (by host - 1), there one to rank 0. Empty on other ranks.
  std::vector<ControlConnection> control = {};

  int size() const { return ranks; }
  const std::vector<Rank>& local_ranks() const { return hosts[static_cast<std::size_t>(host)]; }

  // `size` ranks on one host.
  static RemoteMesh one_host(Rank self, int size);
};

// How the ranks of several hosts meet. The first rank of each host gathers who is there and tells
// rank 0, which listens where everybody expects it; rank 0 tells them who is where, and each tells
// its host, all once a host: thousands of ranks can start. Nobody is connected to anybody else yet:
// whoever needs another one calls it later (see DataLinks).
struct RemoteJoin {
  Introduction self;  // without addresses
  std::string job_id;
  Epoch epoch = 0;       // counts the meetings of the same processes
  Endpoint rendezvous;   // where rank 0 listens
  Fd listener = {};      // rank 0: there already, opened by the starter
  std::string nic = {};  // see choose_addresses
  PortRange ports = {};
  std::vector<std::string> addresses = {};  // instead of this machine's own
  int streams = 1;                          // connections of a pair, at most kPairStreamsMax
  bool tls = false;                         // the same for all ranks
  std::uint64_t timeout_ms = 30'000;        // to meet; later, of each call
  std::function<void(const std::string&)> warn = {};  // of strangers; called from any thread
  std::function<void(const std::string&)> tell = {};  // rank 0, once: which addresses were chosen
};

// Blocking, at most `timeout_ms`. `local` connects the ranks of this host, which all join. Every
// error names who is missing or what contradicts what.
Result<RemoteMesh> join_remote(RemoteJoin join, const LocalMesh& local, const Secret& key);

}  // namespace ciranda
