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

// How eagerly this rank drives. It may change at any time and may differ between ranks. Aligned to
// 8 bytes so that it is one atomic word with clang, too.
struct alignas(8) Pace {
  // The background thread drives too while user threads compute: pays only with free cores.
  bool overlap = false;
  // How long a blocked caller polls before it sleeps; at most 1 s. It should exceed the time in
  // which a sleeper wakes (20 to 50 us): with less, two ranks that answer each other sleep in
  // turns, and 4 bytes take 40 us instead of 4. If ranks outnumber cores, it should be short (see
  // settings/config.cc).
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
  std::span<const BackendEntry> backends = backend_entries();  // backends that need a library
  std::uint64_t peer_timeout_ms = 3'000;         // without an answer of another host's kernel
  std::function<void(const std::string&)> warn;  // one sentence; called from any thread
  // Tells the user where this rank is, when other ranks wait for it and ask. Called from the
  // background thread, at most twice in stall_warning_ns; must not block.
  std::function<void()> show_where;
  // Returns true if the program wants the waiting thread to stop (Ctrl-C); that ends the World.
  // Called ten times a second in a waiting thread; may block.
  std::function<bool()> interrupted;
  // Called when the process of a local rank has begun to end without leaving, from a thread of the
  // engine, at most once. If it is set, the engine notices most deaths much earlier, see LifeWatch.
  std::function<void(Rank local)> died;
  // Called when this rank cannot reach a rank of another host: their connection has broken, is
  // silent, or was never made. Not called for what other ranks tell. From a thread of the engine or
  // the one that starts it; must not block.
  std::function<void(Rank)> unreachable;
};

// This rank's time in blocking calls and the data it moved, since the start.
struct EngineStats {
  std::uint64_t waiting_ns = 0;        // blocked on other ranks
  std::uint64_t communicating_ns = 0;  // copying and reducing operations of at least 16 KiB
  std::uint64_t operations = 0;
  std::uint64_t bytes = 0;  // payload of finished operations on this rank
};

// An unfinished operation of this rank, for error reports.
struct PendingOperation {
  OpKind kind = OpKind::kAllreduce;
  std::string name;
  std::vector<Rank> missing;  // ranks that had not submitted it
};

}  // namespace ciranda
