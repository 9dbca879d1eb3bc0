#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/runtime/engine.h"
#include "core/transport/tcp.h"

namespace ciranda {

// This rank's place in the job, as its starter told it.
struct Place {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int cross_rank = 0;
  int cross_size = 1;
};

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

// Every knob of the runtime: docs/configuration.md lists name, default and bounds.
struct Config {
  Place place;
  std::string starter;     // whose variables told the place: "ciranda", "torchrun", …; "none"
  std::string job_id;      // distinguishes jobs of one user on one host
  std::string job_folder;  // where local ranks meet
  std::uint64_t start_timeout_ms = 30'000;  // CIRANDA_START_TIMEOUT_SECONDS
  RemoteConfig remote;                      // place.cross_size > 1
  bool trusted_network = false;             // CIRANDA_TRUSTED_NETWORK
  bool keep_heap = true;                    // see torch/heap.h
  std::optional<DType> wire_dtype;          // of gradients, see RequestSpec; CIRANDA_WIRE_DTYPE
  EngineOptions engine;                     // CIRANDA_CPU_OPERATIONS, CIRANDA_GPU_OPERATIONS, …
  std::vector<std::string> warnings;        // a sentence each, for the first rank to say
};

// A source of variables: null when not set. The process environment in production.
using Getenv = std::function<const char*(const char* name)>;

// Reads the environment of whoever started this process: ciranda run, torchrun, horovodrun,
// mpirun (Open MPI), MPICH/PMI, srun, in this order; without any, a world of one rank. `cores`:
// usable by the ranks of this host. An Error names the variable, its value and what it should be.
Result<Config> read_config(const Getenv& getenv, int cores);

// What all ranks must have been told alike, for wire/settings.h: whatever a common decision depends
// on. Every other variable is of one rank, or of one host.
std::string shared_settings(const Config& config);

// read_config on this process: its environment, its affinity mask; warnings go to its stderr.
Result<Config> read_process_config();

}  // namespace ciranda
