#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/wire/types.h"

namespace ciranda {

// What happened when, as Chrome trace events (chrome://tracing, ui.perfetto.dev): for each
// operation the time until all ranks agreed (NEGOTIATE) and the time until it was done. Kept in
// memory, bounded (later events are dropped and counted), written once. Thread-safe.
class Timeline {
 public:
  Timeline(std::string path, Rank rank);

  void record(std::string_view what, const std::string& tensor, std::uint64_t begin_ns,
              std::uint64_t end_ns) EXCLUDES(mutex_);
  // Writes the file; an error names the path.
  Status write() EXCLUDES(mutex_);

  static constexpr std::size_t kEventsMax = 1 << 20;

 private:
  struct Event {
    std::string what;
    std::string tensor;
    std::uint64_t begin_ns;
    std::uint64_t end_ns;
  };
  const std::string path_;
  const Rank rank_;
  Mutex mutex_;
  std::vector<Event> events_ GUARDED_BY(mutex_);
  std::uint64_t dropped_ GUARDED_BY(mutex_) = 0;
};

}  // namespace ciranda
