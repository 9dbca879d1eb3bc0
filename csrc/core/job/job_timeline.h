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

// One timeline of a whole job. If the job has several hosts, rank 0 collects the events of the
// other hosts, and all times are those of host 0's clock. Barriers at the beginning and at the end,
// in which every rank takes part, measure how far ahead the other hosts' clocks are.
//
// If that fails, because a rank is lost, has left or cannot write, each host keeps its own file
// (see Timeline); its times then use the measurement from the beginning alone. Thread-safe.
class JobTimeline {
 public:
  // `engine` must outlive this object. `warn` gets a sentence when a host keeps its own file, or
  // end() fails.
  JobTimeline(Engine& engine, std::function<void(const std::string&)> warn)
      : engine_(engine), warn_(std::move(warn)) {}

  // See Timeline. If the job has several hosts, all ranks must call these, in the same order; each
  // call blocks until all ranks have made it.
  Status start(const std::string& path, bool marks_cycles) EXCLUDES(mutex_);
  Status stop() EXCLUDES(mutex_);
  // Called before Engine::shutdown(), which alone would write a file for each host. If the job has
  // several hosts, it does what stop() does, provided that all ranks take part. Each operation
  // waits for the other ranks for at most `patience_ns`; the default is as long as a goodbye may
  // take.
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
  // This host's clock at the beginning. It is set if all ranks record: on all ranks or on none.
  std::optional<ClockReading> first_ GUARDED_BY(mutex_);
  std::uint64_t patience_ns_ GUARDED_BY(mutex_) = kNever;  // for the other ranks, in each operation
};

}  // namespace ciranda
