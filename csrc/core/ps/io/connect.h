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

// Where a worker's servers are, and who it is.
struct ServersAddress {
  std::string folder;                                             // the job's
  std::vector<std::optional<Endpoint>> servers = {std::nullopt};  // none: here, in the folder
  // Where one is on another host: what both sides prove that they hold.
  std::shared_ptr<const ConnectionKeys> keys = {};
  bool authenticates = true;  // see MessageLink
  Worker worker = 0;
  Life life = 1;
  std::uint64_t timeout_ms = 30'000;  // for the servers to show up
};

// A link to that server. kTimeout at the deadline (monotonic_ns), where nobody is there. Blocking.
// `memory` must outlive the link.
Result<std::unique_ptr<ServerLink>> connect_to_server(const ServersAddress& address, int server,
                                                      const WorkerMemory& memory,
                                                      std::uint64_t deadline_ns);

// One link for each server, which is there and proven, where it is on another host. Blocking, and
// in the time of the slowest. `memory` must outlive the links.
// `notice` is told of who is missing.
Result<std::vector<std::unique_ptr<ServerLink>>> connect_to_servers(const ServersAddress& address,
                                                                    const WorkerMemory& memory,
                                                                    WaitNotice& notice);

// What this worker tells servers that were started by hand; nothing where they were not. Blocking:
// reads files of /proc.
Origin origin_of_worker(const Config& config);

}  // namespace ciranda::ps
