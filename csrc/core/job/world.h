#pragma once

#include <memory>
#include <optional>

#include "core/base/result.h"
#include "core/base/secret.h"
#include "core/engine/engine.h"
#include "core/job/job_timeline.h"
#include "core/settings/config.h"

namespace ciranda {

// What a process keeps of its job from one World to the next: its starter hands over the key and
// the rendezvous only once. Not thread-safe.
struct Handover {
  bool met = false;           // the ranks of this host, once
  bool taken = false;         // the descriptors are used up
  std::optional<Secret> key;  // several hosts
  Epoch meetings = 0;         // that came about; each has keys of its own
};

// The job's key into `handover`, unless it is there. `later`: its descriptor is used up. kForked in
// a forked child.
Status take_key(const Config& config, Handover& handover, bool later);

// Owns everything of one rank of one job: its place and its engine. No global state: a process may
// hold several Worlds, or none.
class World {
 public:
  // Meets the other ranks. Blocking, at most config.start_timeout_ms. kUnsupported where the chosen
  // backend for memory of the CPU is missing; for that of a GPU the first submission says so.
  static Result<std::unique_ptr<World>> start(Config config, Handover& handover);

  const RankInfo& rank_info() const { return config_.rank_info; }
  const Config& config() const { return config_; }
  const std::shared_ptr<Engine>& engine() const { return engine_; }
  // Thread-safe, like the engine.
  JobTimeline& timeline() const { return *timeline_; }

  // The engine's, and the end of the timeline. Idempotent; blocks at most some seconds.
  void shutdown();

 private:
  World(Config config, std::shared_ptr<Engine> engine);
  void start_timeline();

  Config config_;
  std::shared_ptr<Engine> engine_;
  std::unique_ptr<JobTimeline> timeline_;
};

}  // namespace ciranda
