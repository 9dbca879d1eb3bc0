#include "core/runtime/timeline.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <utility>

#include "core/base/clock.h"
#include "core/runtime/submission_queue.h"
#include "core/transport/fd.h"

namespace ciranda {
namespace {

constexpr std::string_view kEnd = "\n]}\n";

std::string json_text(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      quoted += escape;
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string microseconds(std::uint64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", static_cast<double>(ns) / 1e3);
  return text;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Error cannot_write(const std::string& path, int number) {
  return Error::from_errno("cannot write the timeline " + path, number);
}

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

// Appends to `to` what `path` has before its end, if it begins with `head`; false otherwise.
bool copy_events(const std::string& path, const std::string& head, std::FILE* to) {
  const File from(std::fopen(path.c_str(), "re"));
  if (!from) return false;
  std::string text(head.size(), '\0');
  if (std::fread(text.data(), 1, text.size(), from.get()) != text.size() || text != head) {
    return false;
  }
  struct stat about {};
  if (::fstat(::fileno(from.get()), &about) != 0) return false;
  auto rest = static_cast<std::size_t>(about.st_size) - head.size();
  if (rest < kEnd.size()) return false;
  rest -= kEnd.size();
  text.resize(1 << 16);
  while (rest > 0) {
    const std::size_t bytes = std::fread(text.data(), 1, std::min(rest, text.size()), from.get());
    if (bytes == 0) return false;
    std::fwrite(text.data(), 1, bytes, to);
    rest -= bytes;
  }
  return true;
}

// The file is always whole: it is replaced by a new one. One rank at a time.
Status add_to_file(const std::string& path, const std::string& head, const std::string& events) {
  struct stat about {};
  if (::stat(path.c_str(), &about) == 0 && !S_ISREG(about.st_mode)) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .text = "cannot write the timeline " + path + ": it is no file"};
  }
  const Fd folder(::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid() || ::flock(folder.get(), LOCK_EX) != 0) return cannot_write(path, errno);
  const std::string part = path + "." + std::to_string(::getpid()) + ".part";
  File file(std::fopen(part.c_str(), "we"));
  if (!file) return cannot_write(path, errno);
  std::fwrite(head.data(), 1, head.size(), file.get());
  if (copy_events(path, head, file.get())) {
    std::fputs(",\n", file.get());
  } else {
    std::fflush(file.get());
    if (::ftruncate(::fileno(file.get()), static_cast<off_t>(head.size())) != 0) {
      return cannot_write(path, errno);
    }
    std::fseek(file.get(), 0, SEEK_END);
  }
  std::fwrite(events.data(), 1, events.size(), file.get());
  std::fwrite(kEnd.data(), 1, kEnd.size(), file.get());
  const bool good = std::ferror(file.get()) == 0;
  const bool closed = std::fclose(file.release()) == 0;
  if (good && closed && std::rename(part.c_str(), path.c_str()) == 0) return {};
  const int why = errno;
  std::remove(part.c_str());
  return cannot_write(path, why);
}

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
  if (::access(folder_of(full).c_str(), W_OK) != 0) return cannot_write(full, errno);
  path_ = std::move(full);
  marks_cycles_ = marks_cycles;
  ++starts_;
  on_.store(true, std::memory_order_relaxed);
  return {};
}

Status Timeline::stop() {
  const MutexLock lock(mutex_);
  if (path_.empty()) return {};
  on_.store(false, std::memory_order_relaxed);
  // Of another start, or job, nothing stays.
  const std::string head =
      "{\"otherData\": {\"job\": " + json_text(job_ + "." + std::to_string(starts_)) +
      "}, \"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  Status written = add_to_file(path_, head, events_as_text());
  path_.clear();
  events_.clear();
  dropped_ = 0;
  return written;
}

void Timeline::add(Event event) {
  const MutexLock lock(mutex_);
  if (path_.empty()) return;
  if (event.row.empty() && !marks_cycles_) return;
  if (events_.size() >= kEventsMax) {
    ++dropped_;
    return;
  }
  events_.push_back(std::move(event));
}

void Timeline::record_operation(std::string_view prefix, const RequestSpec& spec,
                                std::uint64_t begin_ns, std::uint64_t end_ns) {
  const std::string kind(op_kind_name(spec.kind));
  std::string what(prefix);
  for (const char c : kind) {
    what += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  add({what, is_unnamed(spec) ? spec.name : kind + "." + spec.name, begin_ns, end_ns});
}

void Timeline::record(std::string_view what, std::string row, std::uint64_t begin_ns,
                      std::uint64_t end_ns) {
  add({std::string(what), std::move(row), begin_ns, end_ns});
}

void Timeline::mark_cycle(std::uint64_t now_ns) {
  add({"CYCLE_START", "", now_ns, now_ns});
}

// Events of one row do not overlap: an unnamed operation that begins before another one of its name
// has ended gets a row of its own.
std::string Timeline::events_as_text() const {
  const std::string pid = "\"pid\": " + std::to_string(rank_);
  const std::string metadata = ",\n{\"ph\": \"M\", " + pid + ", ";
  // What CLOCK_MONOTONIC's zero is in the time of day, to lay files of several hosts side by side.
  const std::uint64_t epoch_us = (read_clock_ns(CLOCK_REALTIME) - monotonic_ns()) / 1000;
  std::string text = "{\"ph\": \"M\", " + pid +
                     ", \"name\": \"process_name\", \"args\": {\"name\": \"rank " +
                     std::to_string(rank_) +
                     "\", \"start_time_since_epoch_in_micros\": " + std::to_string(epoch_us) +
                     ", \"dropped\": " + std::to_string(dropped_) + "}}";
  text += metadata +
          "\"name\": \"process_sort_index\", \"args\": {\"sort_index\": " + std::to_string(rank_) +
          "}}";
  struct Row {
    int number;
    std::uint64_t busy_until_ns;
  };
  std::multimap<std::string, Row> rows;
  int numbers = 0;
  for (const Event& event : events_) {
    if (event.row.empty()) {
      text += ",\n{\"ph\": \"i\", \"s\": \"p\", " + pid +
              ", \"tid\": 0, \"name\": " + json_text(event.what) +
              ", \"ts\": " + microseconds(event.begin_ns) + "}";
      continue;
    }
    const auto [first, last] = rows.equal_range(event.row);
    auto row = std::find_if(first, last, [&](const auto& candidate) {
      return candidate.second.busy_until_ns <= event.begin_ns;
    });
    if (row == last) {
      row = rows.emplace(event.row, Row{.number = ++numbers, .busy_until_ns = 0});
      text += metadata + "\"tid\": " + std::to_string(numbers) +
              ", \"name\": \"thread_name\", \"args\": {\"name\": " + json_text(event.row) + "}}";
    }
    row->second.busy_until_ns = event.end_ns;
    text += ",\n{\"ph\": \"X\", " + pid + ", \"tid\": " + std::to_string(row->second.number) +
            ", \"name\": " + json_text(event.what) + ", \"ts\": " + microseconds(event.begin_ns) +
            ", \"dur\": " + microseconds(event.end_ns - event.begin_ns) + "}";
  }
  return text;
}

}  // namespace ciranda
