#include "core/trace/timeline.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <map>
#include <utility>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/trace/timeline_file.h"
#include "core/wire/operation_name.h"

namespace ciranda {
namespace {

constexpr std::size_t kPieceBytes = 1 << 18;  // of events; a piece may travel to another host

std::string microseconds(std::uint64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", static_cast<double>(ns) / 1e3);
  return text;
}

// Events of one row do not overlap. An unnamed operation that begins before another one of its name
// has ended gets another row.
class Rows {
 public:
  struct Place {
    int number;
    bool is_new;
  };
  Place place(const std::string& name, std::uint64_t begin_ns, std::uint64_t end_ns) {
    const auto [first, last] = rows_.equal_range(name);
    auto row = std::find_if(first, last, [&](const auto& candidate) {
      return candidate.second.busy_until_ns <= begin_ns;
    });
    const bool is_new = row == last;
    if (is_new) row = rows_.emplace(name, Row{.number = ++numbers_, .busy_until_ns = 0});
    row->second.busy_until_ns = end_ns;
    return {row->second.number, is_new};
  }

 private:
  struct Row {
    int number;
    std::uint64_t busy_until_ns;
  };
  std::multimap<std::string, Row> rows_;
  int numbers_ = 0;
};

}  // namespace

Timeline::Timeline(Rank rank, std::string job, int host)
    : rank_(rank), job_(std::move(job)), host_(host) {}

Status Timeline::start(const std::string& path, bool marks_cycles) {
  const MutexLock lock(mutex_);
  std::string full = host_ == 0 ? path : path + ".host" + std::to_string(host_);
  if (!path_.empty()) {
    if (path_ == full) return {};
    return Error{.code = ErrorCode::kInvalidArgument,
                 .text = "the timeline goes to " + path_ + " already; stop it first"};
  }
  if (path.empty()) {
    return Error{.code = ErrorCode::kInvalidArgument, .text = "the timeline needs a file's name"};
  }
  CIRANDA_ASSERT(events_.empty() && labels_.empty() && dropped_ == 0);  // by take()
  CIRANDA_TRY(check_folder(full));
  path_ = std::move(full);
  marks_cycles_ = marks_cycles;
  events_.reserve(kEventsMax);
  ++starts_;
  on_.store(true, std::memory_order_relaxed);
  return {};
}

void Timeline::resume() {
  const MutexLock lock(mutex_);
  on_.store(!path_.empty(), std::memory_order_relaxed);
}

void Timeline::set_clock(const HostClock& clock) {
  const MutexLock lock(mutex_);
  clock_ = clock;
}

TimelinePart Timeline::take() {
  const MutexLock lock(mutex_);
  on_.store(false, std::memory_order_relaxed);
  if (path_.empty()) return {};
  CIRANDA_ASSERT(starts_ > 0);
  // The file drops the events of other starts and other jobs: see TimelineFile::open().
  TimelinePart part{.path = std::exchange(path_, {}),
                    .job = job_ + "." + std::to_string(starts_),
                    .events = events_as_text()};
  events_ = {};
  labels_.clear();
  clock_ = {};
  dropped_ = 0;
  return part;
}

void Timeline::add(std::uint64_t begin_ns, std::uint64_t end_ns) {
  if (path_.empty()) return;
  if (events_.size() >= kEventsMax) {
    ++dropped_;
    return;
  }
  CIRANDA_ASSERT(events_.size() < events_.capacity());  // reserved by start()
  events_.push_back({&*labels_.insert(label_).first, begin_ns, end_ns});
}

void Timeline::record_operation(std::string_view prefix, const RequestSpec& spec,
                                std::uint64_t begin_ns, std::uint64_t end_ns) {
  const MutexLock lock(mutex_);
  const std::string_view kind = op_kind_name(spec.kind);
  label_ = prefix;
  for (const char c : kind) {
    label_ += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  label_ += '\n';
  if (!is_unnamed(spec)) (label_ += kind) += '.';
  label_ += spec.name;
  add(begin_ns, end_ns);
}

void Timeline::record(std::string_view what, std::string_view row, std::uint64_t begin_ns,
                      std::uint64_t end_ns) {
  const MutexLock lock(mutex_);
  label_ = what;
  (label_ += '\n') += row;
  add(begin_ns, end_ns);
}

void Timeline::mark_cycle(std::uint64_t now_ns) {
  const MutexLock lock(mutex_);
  if (!marks_cycles_) return;
  label_ = "CYCLE_START\n";
  add(now_ns, now_ns);
}

std::vector<std::string> Timeline::events_as_text() const {
  const std::string pid = "\"pid\": " + std::to_string(rank_);
  const std::string metadata = "{\"ph\": \"M\", " + pid + ", ";
  std::vector<std::string> pieces;
  const auto add = [&pieces](const std::string& event) {
    if (pieces.empty() || pieces.back().size() + event.size() > kPieceBytes) {
      pieces.push_back(event);
    } else {
      (pieces.back() += TimelineFile::kBetween) += event;
    }
  };
  // The time of day of the trace's zero, with which files of several jobs can be laid side by side.
  const std::uint64_t epoch_us =
      (read_clock_ns(CLOCK_REALTIME) - clock_.at_host_0(monotonic_ns())) / 1000;
  add(metadata + "\"name\": \"process_name\", \"args\": {\"name\": \"rank " +
      std::to_string(rank_) + "\", \"start_time_since_epoch_in_micros\": " +
      std::to_string(epoch_us) + ", \"clock_error_in_micros\": " +
      microseconds(static_cast<std::uint64_t>(clock_.error_ns())) +
      ", \"dropped\": " + std::to_string(dropped_) + "}}");
  add(metadata + "\"name\": \"process_sort_index\", \"args\": {\"sort_index\": " +
      std::to_string(rank_) + "}}");
  Rows rows;
  for (const Event& event : events_) {
    const std::uint64_t begin_ns = clock_.at_host_0(event.begin_ns);
    const std::uint64_t end_ns = clock_.at_host_0(event.end_ns);
    const std::size_t feed = event.label->find('\n');
    CIRANDA_ASSERT(feed != std::string::npos);  // by record() and its like
    const std::string what = event.label->substr(0, feed);
    const std::string name = event.label->substr(feed + 1);
    if (name.empty()) {
      add("{\"ph\": \"i\", \"s\": \"p\", " + pid + ", \"tid\": 0, \"name\": " + json_text(what) +
          ", \"ts\": " + microseconds(begin_ns) + "}");
      continue;
    }
    const auto [row, is_new] = rows.place(name, begin_ns, end_ns);
    if (is_new) {
      add(metadata + "\"tid\": " + std::to_string(row) +
          ", \"name\": \"thread_name\", \"args\": {\"name\": " + json_text(name) + "}}");
    }
    add("{\"ph\": \"X\", " + pid + ", \"tid\": " + std::to_string(row) +
        ", \"name\": " + json_text(what) + ", \"ts\": " + microseconds(begin_ns) +
        ", \"dur\": " + microseconds(end_ns - begin_ns) + "}");
  }
  return pieces;
}

}  // namespace ciranda
