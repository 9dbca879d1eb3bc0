#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/engine/engine.h"

namespace ciranda {

// The timeline of all ranks of a job: on several hosts one file, which rank 0 writes, with the
// times of host 0's clock. What the other hosts' clocks show then is found out at the beginning and
// at the end, from barriers of all ranks.
//
// Where that does not come about, because a rank is lost, has left or cannot write, each host keeps
// a file of its own (see Timeline), in times that were right at the beginning. Thread-safe.
class JobTimeline {
 public:
  // `engine` outlives it. `warn`: one sentence, where a host keeps a file of its own.
  JobTimeline(Engine& engine, std::function<void(const std::string&)> warn)
      : engine_(engine), warn_(std::move(warn)) {}

  // As Timeline's. On several hosts all ranks of the job call these, in the same order; they block
  // until all do.
  Status start(const std::string& path, bool marks_cycles) EXCLUDES(mutex_);
  Status stop() EXCLUDES(mutex_);
  // Before the engine's shutdown(), which does all else: as stop() on several hosts, if all ranks
  // come to it. An early rank waits for others only so long; in the end as a goodbye may take.
  void end(std::uint64_t patience_ns = 5'000'000'000) EXCLUDES(mutex_);

 private:
  struct Clocks {
    bool all_record;
    ClockReading of_this_host;
  };
  Status merge(const ClockReading& first) REQUIRES(mutex_);
  Status gather(const TimelinePart& part, Status& written) REQUIRES(mutex_);
  Status keep_apart(const TimelinePart& part, const Error& why) REQUIRES(mutex_);
  Result<Clocks> read_clocks(const std::string& name, bool records) REQUIRES(mutex_);
  Status meet(const std::string& name) REQUIRES(mutex_);
  Result<std::vector<std::string>> collect(OpKind kind, const std::string& name, std::string mine)
      REQUIRES(mutex_);
  Status wait(const Handle& handle) REQUIRES(mutex_);
  bool on_host_0() const { return engine_.local_ranks().front() == 0; }

  Engine& engine_;
  const std::function<void(const std::string&)> warn_;
  Mutex mutex_;
  // Of this host's clock, at the beginning. There is one where all ranks record: on all or on none.
  std::optional<ClockReading> first_ GUARDED_BY(mutex_);
  std::uint64_t patience_ns_ GUARDED_BY(mutex_) = kNever;  // for others, with each operation
};

}  // namespace ciranda
