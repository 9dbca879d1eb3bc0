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

// What happened when, as a Chrome trace (ui.perfetto.dev, chrome://tracing): of each operation the
// time until all ranks agreed, NEGOTIATE_ALLREDUCE, and until it was done, ALLREDUCE, as Horovod
// names them. All ranks of a host write one file, each its part when it stops; a rank is a process
// of the trace and an operation's name a row of it. Times are CLOCK_MONOTONIC, the same for all
// ranks of a host; on several hosts host 0's, see JobTimeline. Kept in memory until then, bounded:
// later events are dropped and counted. Thread-safe.
class Timeline {
 public:
  // `job`: the same on all ranks of the host, and on no others. `host` above 0 is a part of the
  // files' names.
  Timeline(Rank rank, std::string job, int host = 0);

  // Records from here on. `marks_cycles`: also each turn in which operations are begun, as
  // Horovod's CYCLE_START. By all ranks that are to be in the file, each time. An error where there
  // is no such folder, or where another file is written already.
  Status start(const std::string& path, bool marks_cycles = false) EXCLUDES(mutex_);
  // Writes this rank's part; an error names the file. Nothing to do where nothing was started.
  // Blocks for the disk, and for ranks that write theirs.
  Status stop() EXCLUDES(mutex_) { return write(take()); }
  // Records nothing until resume(); what was recorded waits for stop() or take().
  void pause() { on_.store(false, std::memory_order_relaxed); }
  void resume() EXCLUDES(mutex_);
  // How this host's clock goes, from here on and of what is recorded already.
  void set_clock(const HostClock& clock) EXCLUDES(mutex_);
  // As stop(), but leaves the writing to the caller.
  TimelinePart take() EXCLUDES(mutex_);
  bool is_on() const { return on_.load(std::memory_order_relaxed); }

  // As "NEGOTIATE_" or "" and the kind, in the row "allreduce.NAME".
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
  void add(std::uint64_t begin_ns, std::uint64_t end_ns) REQUIRES(mutex_);  // as label_ says
  std::vector<std::string> events_as_text() const REQUIRES(mutex_);

  const Rank rank_;
  const std::string job_;
  const int host_;
  std::atomic<bool> on_{false};
  Mutex mutex_;
  std::string path_ GUARDED_BY(mutex_);  // empty: off
  bool marks_cycles_ GUARDED_BY(mutex_) = false;
  int starts_ GUARDED_BY(mutex_) = 0;
  // The program waits while an event is recorded: only a new label allocates. There is room for
  // all that are kept, of which the kernel gives what is used.
  std::vector<Event> events_ GUARDED_BY(mutex_);
  std::unordered_set<std::string> labels_ GUARDED_BY(mutex_);
  std::string label_ GUARDED_BY(mutex_);
  HostClock clock_ GUARDED_BY(mutex_);
  std::uint64_t dropped_ GUARDED_BY(mutex_) = 0;
};

}  // namespace ciranda
