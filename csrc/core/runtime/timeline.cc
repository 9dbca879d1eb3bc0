#include "core/runtime/timeline.h"

#include <cerrno>
#include <cstdio>
#include <utility>

namespace ciranda {
namespace {

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

}  // namespace

Timeline::Timeline(std::string path, Rank rank) : path_(std::move(path)), rank_(rank) {}

void Timeline::record(std::string_view what, const std::string& tensor, std::uint64_t begin_ns,
                      std::uint64_t end_ns) {
  const MutexLock lock(mutex_);
  if (events_.size() >= kEventsMax) {
    ++dropped_;
    return;
  }
  events_.push_back({std::string(what), tensor, begin_ns, end_ns});
}

Status Timeline::write() {
  const MutexLock lock(mutex_);
  std::FILE* file = std::fopen(path_.c_str(), "we");
  if (file == nullptr) return Error::from_errno("cannot write the timeline " + path_, errno);
  std::fprintf(file,
               "{\"traceEvents\": [\n{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %d, "
               "\"args\": {\"name\": \"rank %d\"}}",
               rank_, rank_);
  for (const Event& event : events_) {
    std::fprintf(file,
                 ",\n{\"name\": %s, \"cat\": \"ciranda\", \"ph\": \"X\", \"pid\": %d, \"tid\": 0, "
                 "\"ts\": %.3f, \"dur\": %.3f, \"args\": {\"tensor\": %s}}",
                 json_text(event.what).c_str(), rank_, static_cast<double>(event.begin_ns) / 1e3,
                 static_cast<double>(event.end_ns - event.begin_ns) / 1e3,
                 json_text(event.tensor).c_str());
  }
  std::fprintf(file, "\n], \"otherData\": {\"rank\": %d, \"dropped\": %llu}}\n", rank_,
               static_cast<unsigned long long>(dropped_));
  const bool good = std::ferror(file) == 0;
  const int closed = std::fclose(file);
  if (!good || closed != 0) return Error::from_errno("cannot write the timeline " + path_, errno);
  return {};
}

}  // namespace ciranda
