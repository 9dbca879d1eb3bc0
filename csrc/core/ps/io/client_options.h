#pragma once

#include <cstdint>
#include <string>

#include "core/ps/decide/origin.h"
#include "core/ps/io/connect.h"
#include "core/ps/io/server_links.h"

namespace ciranda::ps {

struct ClientOptions {
  ServersAddress address;
  std::string job_id;
  int workers = 1;
  Origin origin = {};
  ServerLinks::Pace pace = {};
  // Reconnect timeout for a server that persists its state (Welcome::keeps_state). The timeout of a
  // server that has not welcomed this client yet is address.timeout_ms. Losing any other server
  // fails this client.
  std::uint64_t patience_ms = 0;
  std::string timeline_path;  // empty: none
  // This client is the coordinator, not a worker; address.worker is then the number of workers.
  bool coordinates = false;

  int servers() const { return static_cast<int>(address.servers.size()); }
  // Returns how messages to people name this client.
  std::string who() const {
    return coordinates ? "the coordinator" : "worker " + std::to_string(address.worker);
  }
};

}  // namespace ciranda::ps
