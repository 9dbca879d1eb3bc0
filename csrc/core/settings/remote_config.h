#pragma once

#include <string>
#include <string_view>

#include "core/base/result.h"
#include "core/settings/environment.h"
#include "core/settings/starter.h"
#include "core/transport/tcp/tcp.h"

namespace ciranda {

// How ranks on several hosts find and trust each other.
struct RemoteConfig {
  Endpoint rendezvous;   // where rank 0 listens; CIRANDA_RENDEZVOUS, or MASTER_ADDR and a port
  int listener_fd = -1;  // rank 0: inherited, listening; CIRANDA_RENDEZVOUS_FD
  int key_fd = -1;       // inherited, gives the job's key; CIRANDA_KEY_FD
  std::string key_file;  // the file with the key, if key_fd is -1; CIRANDA_KEY_FILE
  std::string nic;       // CIRANDA_NIC
  PortRange ports;       // CIRANDA_PORT_RANGE
  bool tls = false;      // CIRANDA_TLS
};

// Parses "host:port" or "[2001:db8::1]:port"; returns false for anything else.
bool parse_endpoint(std::string_view text, Endpoint& endpoint);

// Reads only the job's key and TLS. If there is no key, returns kInvalidArgument: "`who` need the
// job's key", and how to give it.
Status read_keys(const Environment& env, const std::string& who, RemoteConfig& remote);

// Reads all of RemoteConfig. If something necessary is missing, the Error says how to set it.
Status read_remote(const Environment& env, const Starter& starter, const std::string& job_id,
                   RemoteConfig& remote);

}  // namespace ciranda
