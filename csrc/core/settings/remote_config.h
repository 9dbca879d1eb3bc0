#pragma once

#include <string>
#include <string_view>

#include "core/base/result.h"
#include "core/settings/environment.h"
#include "core/settings/starter.h"
#include "core/transport/tcp/tcp.h"

namespace ciranda {

// How the ranks of several hosts find and trust each other.
struct RemoteConfig {
  Endpoint rendezvous;   // where rank 0 listens; CIRANDA_RENDEZVOUS, or MASTER_ADDR and a port
  int listener_fd = -1;  // rank 0: inherited, listening; CIRANDA_RENDEZVOUS_FD
  int key_fd = -1;       // inherited, gives the job's key; CIRANDA_KEY_FD
  std::string key_file;  // else the file with it; CIRANDA_KEY_FILE
  std::string nic;       // CIRANDA_NIC
  PortRange ports;       // CIRANDA_PORT_RANGE
  bool tls = false;      // CIRANDA_TLS
};

// "host:port", "[2001:db8::1]:port"; false where it is neither.
bool parse_endpoint(std::string_view text, Endpoint& endpoint);

// The job's key and TLS alone. kInvalidArgument where there is no key: "`who` need the job's key",
// and how to give it.
Status read_keys(const Environment& env, const std::string& who, RemoteConfig& remote);

// What it cannot do without is an Error that says how to set it.
Status read_remote(const Environment& env, const Starter& starter, const std::string& job_id,
                   RemoteConfig& remote);

}  // namespace ciranda
