#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/engine/engine.h"
#include "core/settings/environment.h"
#include "core/settings/remote_config.h"
#include "core/settings/starter.h"

namespace ciranda {

// What python/ciranda/torch/autotune.py does.
struct AutotuneConfig {
  bool on = false;            // CIRANDA_AUTOTUNE
  bool wire_dtype = false;    // may round what goes between hosts; CIRANDA_WIRE_DTYPE=auto
  std::string log;            // a file of the first rank's; empty: none; CIRANDA_AUTOTUNE_LOG
  int warmup_samples = 3;     // CIRANDA_AUTOTUNE_WARMUP_SAMPLES
  int steps_per_sample = 10;  // CIRANDA_AUTOTUNE_STEPS_PER_SAMPLE
};

// Every knob of the runtime: docs/configuration.md lists name, default and bounds.
struct Config {
  RankInfo rank_info;
  std::string starter;          // whose variables were read: "ciranda", "torchrun", …; "none"
  std::string job_id;           // distinguishes jobs of one user on one host
  std::string job_folder;       // where local ranks meet
  std::string rank_variable;    // which tells its number
  bool prove_origin = false;    // no more than a port tells jobs apart
  std::string unplaced_master;  // MASTER_ADDR, where nobody told how many ranks this host has
  std::uint64_t start_timeout_ms = 30'000;  // CIRANDA_START_TIMEOUT_SECONDS
  RemoteConfig remote;                      // rank_info.cross_size > 1, or servers elsewhere
  bool trusted_network = false;             // CIRANDA_TRUSTED_NETWORK
  bool keep_heap = true;                    // see torch/heap.h
  std::optional<DType> wire_dtype;          // of gradients, see RequestSpec; CIRANDA_WIRE_DTYPE
  AutotuneConfig autotune;
  // Parameter servers, in whose jobs there is no World, and where each is; none: here, in the job's
  // folder. CIRANDA_PS_SERVERS, told by ciranda run; or CIRANDA_PS, by who starts them by hand.
  std::vector<std::optional<Endpoint>> servers;
  bool has_servers_elsewhere() const;
  std::string servers_job;  // what they call the job
  // Started by hand, they ask where their workers come from: see ps::Origin.
  bool servers_by_hand = false;
  std::string origin_job;
  // This process is no worker: it gives tasks to them, see Ledger. CIRANDA_COORDINATOR
  bool coordinates = false;
  // How long one that is lost, and keeps its state, is waited for. CIRANDA_PS_PATIENCE_SECONDS
  std::uint64_t servers_patience_ms = 60'000;
  std::uint64_t life_base = 0;  // grows from start to start of this worker of theirs; CIRANDA_LIFE
  bool with_comm = false;       // Python's init() has one, and meets again by it
  std::string timeline_path;    // CIRANDA_TIMELINE; empty: none
  bool timeline_marks_cycles = false;  // CIRANDA_TIMELINE_MARK_CYCLES
  EngineOptions engine;                // CIRANDA_CPU_OPERATIONS, CIRANDA_GPU_OPERATIONS, …
  std::vector<std::string> warnings;   // a sentence each, for the first rank to say
};

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
