#pragma once

#include <memory>
#include <optional>

#include "core/base/result.h"
#include "core/base/secret.h"
#include "core/engine/engine.h"
#include "core/job/job_timeline.h"
#include "core/settings/config.h"

namespace ciranda {

// The data that a process keeps of its job from one World to the next, because its starter hands
// over the key and the rendezvous only once. Not thread-safe.
struct Handover {
  bool met = false;           // the ranks of this host have met
  bool taken = false;         // the starter's descriptors are used up
  std::optional<Secret> key;  // with several hosts
  Epoch meetings = 0;         // number of successful meetings; each has its own keys
};

// Reads the job's key into `handover`, unless that has it already. `later`: the key's descriptor is
// used up, if it had one. kForked in a forked child, where the key is wiped. Blocks at most
// config.start_timeout_ms.
Status take_key(const Config& config, Handover& handover, bool later);

// Owns all that makes a process a rank of a job: its configuration, its engine and the timeline.
// There is no global state: a process may hold several Worlds, or none.
class World {
 public:
  // Meets the other ranks, first those of this host, then those of other hosts. Blocks; each of the
  // two meetings takes at most config.start_timeout_ms. kUnsupported if the backend chosen for CPU
  // memory is missing; a missing one for GPU memory fails the first submission.
  static Result<std::unique_ptr<World>> start(Config config, Handover& handover);

  const RankInfo& rank_info() const { return config_.rank_info; }
  const Config& config() const { return config_; }
  const std::shared_ptr<Engine>& engine() const { return engine_; }
  // Thread-safe, like the engine.
  JobTimeline& timeline() const { return *timeline_; }

  // Ends the timeline and shuts the engine down. Idempotent; blocks for some seconds at most.
  void shutdown();

 private:
  World(Config config, std::shared_ptr<Engine> engine);
  void start_timeline();

  Config config_;
  std::shared_ptr<Engine> engine_;
  std::unique_ptr<JobTimeline> timeline_;
};

}  // namespace ciranda
