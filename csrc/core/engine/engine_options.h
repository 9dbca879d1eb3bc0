#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/backend/registry.h"
#include "core/backend/ring/ring_backend.h"
#include "core/engine/run/backends.h"
#include "core/plan/fusion.h"

namespace ciranda {

// When this rank drives. May be changed at any time, and be another one on each rank: in one word,
// aligned as clang's atomics want it.
struct alignas(8) Pace {
  // Also drive from the background thread while user threads compute: pays only with free cores.
  bool overlap = false;
  // How long a blocked caller looks for news before it sleeps, at most 1 s. 0 when ranks outnumber
  // cores. Longer than a sleeper takes to wake (20 to 50 us): with less, two ranks that answer each
  // other stay asleep in turns (4 bytes then take 40 us instead of 4).
  std::uint32_t spin_ns = 100'000;
};

struct EngineOptions {
  Pace pace;
  std::uint64_t stall_warning_ns = 60'000'000'000;  // 0: never warn
  std::uint64_t stall_shutdown_ns = 0;              // 0: wait for ever
  std::size_t cache_entries = kCacheEntriesDefault;
  FusionLimits fusion;
  BackendChoice backend_choice;
  RingOptions ring;                                            // between hosts
  std::span<const BackendEntry> backends = backend_entries();  // those that need a library
  std::uint64_t peer_timeout_ms = 3'000;         // without an answer of another host's kernel
  std::function<void(const std::string&)> warn;  // one sentence; called from any thread
  // Others wait for this rank and ask where it is: says so, for people. Called from the background
  // thread, at most once in stall_warning_ns; must not wait.
  std::function<void()> show_where;
  // Whether the program wants this thread to wait no longer (Ctrl-C), which ends the World. Asked
  // ten times a second in a thread that waits; may take its time.
  std::function<bool()> interrupted;
};

// Where this rank's time in blocking calls went, and what was moved; since the start.
struct EngineStats {
  std::uint64_t waiting_ns = 0;        // blocked on other ranks
  std::uint64_t communicating_ns = 0;  // copying and reducing, of what is 16 KiB or larger
  std::uint64_t operations = 0;
  std::uint64_t bytes = 0;  // payload of finished operations on this rank
};

// An operation of this rank that is not finished, for error reports.
struct PendingOperation {
  OpKind kind = OpKind::kAllreduce;
  std::string name;
  std::vector<Rank> missing;  // ranks that had not submitted it
};

}  // namespace ciranda
