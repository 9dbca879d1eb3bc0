#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/trace/host_clock.h"
#include "core/trace/timeline_file.h"
#include "core/wire/messages.h"

namespace ciranda {

// Records what happens when, as a Chrome trace (ui.perfetto.dev, chrome://tracing). Each operation
// has two events, named as Horovod names them: NEGOTIATE_ALLREDUCE until all ranks have agreed,
// then ALLREDUCE until it is done. A rank is a process of the trace, and the name of an operation
// is a row. All ranks of a host write one file, each its part when it stops. Times are
// CLOCK_MONOTONIC, which the ranks of a host share; on several hosts they are host 0's, see
// JobTimeline. At most kEventsMax events are kept in memory; later ones are dropped and counted.
// Thread-safe.
class Timeline {
 public:
  // `job`: the same on all ranks of the host, and on no others. `host`: part of the file's name if
  // it is above 0.
  Timeline(Rank rank, std::string job, int host = 0);

  // Starts to record. `marks_cycles`: also marks each turn that begins operations, as Horovod's
  // CYCLE_START. All ranks that are to be in the file must call this, each time. Returns an error
  // if the folder cannot be written to, or if a timeline is already recorded to another file.
  Status start(const std::string& path, bool marks_cycles = false) EXCLUDES(mutex_);
  // Stops and writes this rank's part; does nothing if nothing was started. Blocks for the disk and
  // for ranks that write theirs. An error names the file.
  Status stop() EXCLUDES(mutex_) { return write(take()); }
  // Stops recording until resume(); recorded events stay for stop() or take().
  void pause() { on_.store(false, std::memory_order_relaxed); }
  void resume() EXCLUDES(mutex_);
  // Sets how this host's clock goes, for the events already recorded and for later ones.
  void set_clock(const HostClock& clock) EXCLUDES(mutex_);
  // Does what stop() does, but leaves the writing to the caller.
  TimelinePart take() EXCLUDES(mutex_);
  bool is_on() const { return on_.load(std::memory_order_relaxed); }

  // Records `prefix` ("NEGOTIATE_" or "") and the kind, in the row "allreduce.NAME".
  void record_operation(std::string_view prefix, const RequestSpec& spec, std::uint64_t begin_ns,
                        std::uint64_t end_ns) EXCLUDES(mutex_);
  void record(std::string_view what, std::string_view row, std::uint64_t begin_ns,
              std::uint64_t end_ns) EXCLUDES(mutex_);
  void mark_cycle(std::uint64_t now_ns) EXCLUDES(mutex_);

  static constexpr std::size_t kEventsMax = 1 << 20;

 private:
  struct Event {
    const std::string* label;  // what, a line feed, its row; no row: a mark of the whole rank
    std::uint64_t begin_ns;
    std::uint64_t end_ns;
  };
  void add(std::uint64_t begin_ns, std::uint64_t end_ns) REQUIRES(mutex_);  // uses label_
  std::vector<std::string> events_as_text() const REQUIRES(mutex_);

  const Rank rank_;
  const std::string job_;
  const int host_;
  std::atomic<bool> on_{false};
  Mutex mutex_;
  std::string path_ GUARDED_BY(mutex_);  // empty: off
  bool marks_cycles_ GUARDED_BY(mutex_) = false;
  int starts_ GUARDED_BY(mutex_) = 0;
  // The program waits while an event is recorded, so only a new label allocates memory. Room for
  // kEventsMax events is reserved; the kernel provides only the pages that are used.
  std::vector<Event> events_ GUARDED_BY(mutex_);
  std::unordered_set<std::string> labels_ GUARDED_BY(mutex_);
  std::string label_ GUARDED_BY(mutex_);
  HostClock clock_ GUARDED_BY(mutex_);
  std::uint64_t dropped_ GUARDED_BY(mutex_) = 0;
};

}  // namespace ciranda
