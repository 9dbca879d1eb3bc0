#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/ps/decide/model.h"
#include "core/ps/decide/origin.h"
#include "core/ps/io/server_link.h"
#include "core/ps/io/wait_notice.h"
#include "core/settings/config.h"
#include "core/transport/tcp/tcp.h"
#include "core/wire/handshake.h"

namespace ciranda::ps {

// The addresses of a worker's servers, and who the worker is.
struct ServersAddress {
  std::string folder;                                             // the job's
  std::vector<std::optional<Endpoint>> servers = {std::nullopt};  // none: on this host, in `folder`
  // For servers on other hosts; each side proves that it holds them.
  std::shared_ptr<const ConnectionKeys> keys = {};
  bool authenticates = true;  // see MessageLink
  Worker worker = 0;
  Life life = 1;
  std::uint64_t timeout_ms = 30'000;  // until the servers must be reachable
};

// Connects to one server. Blocks; returns kTimeout if the server is not there by `deadline_ns`
// (monotonic_ns). `memory` must outlive the link.
Result<std::unique_ptr<ServerLink>> connect_to_server(const ServersAddress& address, int server,
                                                      const WorkerMemory& memory,
                                                      std::uint64_t deadline_ns);

// Connects to all servers and returns the links by server; links to other hosts are proven. Blocks
// until the slowest server is reached, at most address.timeout_ms. `memory` must outlive the links.
// `notice` reports the servers that it waits for.
Result<std::vector<std::unique_ptr<ServerLink>>> connect_to_servers(const ServersAddress& address,
                                                                    const WorkerMemory& memory,
                                                                    WaitNotice& notice);

// Returns what this worker tells servers that were started by hand; an empty Origin for other
// servers. Blocks: reads files of /proc.
Origin origin_of_worker(const Config& config);

}  // namespace ciranda::ps
