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

// Settings of autotuning; see Tuner.
struct AutotuneConfig {
  bool on = false;          // CIRANDA_AUTOTUNE
  bool wire_dtype = false;  // may round data between hosts; CIRANDA_WIRE_DTYPE=auto
  std::string log;          // a file that the first rank writes; empty: none; CIRANDA_AUTOTUNE_LOG
  int warmup_samples = 3;   // CIRANDA_AUTOTUNE_WARMUP_SAMPLES
  int steps_per_sample = 10;  // CIRANDA_AUTOTUNE_STEPS_PER_SAMPLE
};

// This process's place in an elastic job; `ciranda run` sets both. See Member.
struct MemberConfig {
  int fd = -1;                    // a socket to the arbiter; -1: no elastic job; CIRANDA_MEMBER_FD
  std::uint32_t incarnation = 0;  // CIRANDA_INCARNATION
};

// Every setting of the runtime: docs/configuration.md lists names, defaults and bounds.
struct Config {
  RankInfo rank_info;
  std::string starter;          // whose variables were read: "ciranda", "torchrun", …; "none"
  std::string job_id;           // distinguishes jobs of one user on one host
  std::string job_folder;       // where the ranks of this host meet
  std::string error_file;       // CIRANDA_ERROR_FILE, which ciranda run sets; empty: none
  std::string rank_variable;    // the name of the variable with this rank's number
  bool prove_origin = false;    // at most a port tells jobs apart: see check_same_job()
  std::string unplaced_master;  // MASTER_ADDR, if no variable gave this host's number of ranks
  std::uint64_t start_timeout_ms = 30'000;  // CIRANDA_START_TIMEOUT_SECONDS
  int interrupt = -1;                       // ends the meeting when it is readable, see UnixJoin
  RemoteConfig remote;              // if rank_info.cross_size > 1 or has_servers_elsewhere()
  bool trusted_network = false;     // CIRANDA_TRUSTED_NETWORK
  bool keep_heap = true;            // see ciranda/torch/tensor/heap.h
  std::optional<DType> wire_dtype;  // of gradients, see RequestSpec; CIRANDA_WIRE_DTYPE
  AutotuneConfig autotune;
  MemberConfig member;
  // The address of each parameter server; none: on this host, in the job's folder. A job with
  // servers has no World. From CIRANDA_PS_SERVERS, which ciranda run sets, or CIRANDA_PS, which the
  // user sets for servers started by hand.
  std::vector<std::optional<Endpoint>> servers;
  bool has_servers_elsewhere() const;
  std::string servers_job;  // the name of the job for the servers
  // Servers started by hand check that their workers are of one job: see ps::Origin.
  bool servers_by_hand = false;
  std::string origin_job;
  // This process is the coordinator: it gives tasks to the workers and is not a worker. See Ledger.
  // CIRANDA_COORDINATOR
  bool coordinates = false;
  // Reconnect timeout for a lost server that keeps its state. CIRANDA_PS_PATIENCE_SECONDS
  std::uint64_t servers_patience_ms = 60'000;
  std::uint64_t life_base = 0;         // grows with each start of this worker; CIRANDA_LIFE
  bool with_comm = false;              // Python's init() was given a comm
  std::string timeline_path;           // CIRANDA_TIMELINE; empty: none
  bool timeline_marks_cycles = false;  // CIRANDA_TIMELINE_MARK_CYCLES
  EngineOptions engine;                // CIRANDA_CPU_OPERATIONS, CIRANDA_GPU_OPERATIONS, …
  std::vector<std::string> warnings;   // one sentence each; the first rank prints them
};

// Reads the environment that the starter of this process has set. The starter is the first of
// ciranda run, torchrun, horovodrun, mpirun (Open MPI), MPICH/PMI and srun that has set its
// variables; without a starter the World has one rank. `cores`: those that the ranks of this host
// may use. An Error names the variable, its value and the values that are allowed.
Result<Config> read_config(const Getenv& getenv, int cores);

// Returns the settings that must be the same on all ranks because a common decision depends on
// them, as text for wire/settings.h. All other settings concern one rank or one host.
std::string shared_settings(const Config& config);

// Calls read_config() with the environment and the affinity mask of this process. Warnings go to
// its stderr.
Result<Config> read_process_config();

}  // namespace ciranda
