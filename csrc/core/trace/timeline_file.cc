#include "core/trace/timeline_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/base/assert.h"

namespace ciranda {
namespace {

constexpr std::string_view kEnd = "\n]}\n";

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Error cannot_write(const std::string& path, int number) {
  return Error::from_errno("cannot write the timeline " + path, number);
}

}  // namespace

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

Status check_folder(const std::string& path) {
  if (::access(folder_of(path).c_str(), W_OK) != 0) return cannot_write(path, errno);
  return {};
}

Status write(const TimelinePart& part) {
  if (part.path.empty()) return {};
  auto file = TimelineFile::open(part.path, part.job);
  if (!file) return file.error();
  for (const std::string& events : part.events) file.value().add(events);
  return file.value().close();
}

Result<TimelineFile> TimelineFile::open(const std::string& path, const std::string& job) {
  struct stat about {};
  if (::stat(path.c_str(), &about) == 0 && !S_ISREG(about.st_mode)) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .text = "cannot write the timeline " + path + ": it is not a regular file"};
  }
  Fd folder(::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid() || ::flock(folder.get(), LOCK_EX) != 0) return cannot_write(path, errno);
  TimelineFile file(path, std::move(folder));
  CIRANDA_TRY(file.begin("{\"otherData\": {\"job\": " + json_text(job) +
                         "}, \"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"));
  return file;
}

TimelineFile::~TimelineFile() {
  if (file_) std::remove(part_.c_str());
}

Status TimelineFile::begin(const std::string& head) {
  part_ = path_ + "." + std::to_string(::getpid()) + ".part";
  file_.reset(std::fopen(part_.c_str(), "we"));
  if (!file_) return cannot_write(path_, errno);
  std::fwrite(head.data(), 1, head.size(), file_.get());
  has_events_ = copy_events(head);
  if (has_events_) return {};
  std::fflush(file_.get());
  if (::ftruncate(::fileno(file_.get()), static_cast<off_t>(head.size())) != 0) {
    return cannot_write(path_, errno);
  }
  std::fseek(file_.get(), 0, SEEK_END);
  return {};
}

// Copies the events of the old file, if that begins with `head`; returns false otherwise.
bool TimelineFile::copy_events(const std::string& head) {
  const File from(std::fopen(path_.c_str(), "re"));
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
    std::fwrite(text.data(), 1, bytes, file_.get());
    rest -= bytes;
  }
  return true;
}

void TimelineFile::add(std::string_view events) {
  CIRANDA_ASSERT(file_ != nullptr && !events.empty());  // open, and not closed yet
  if (has_events_) std::fwrite(kBetween.data(), 1, kBetween.size(), file_.get());
  std::fwrite(events.data(), 1, events.size(), file_.get());
  has_events_ = true;
}

Status TimelineFile::close() {
  CIRANDA_ASSERT(file_ != nullptr);  // closed once
  std::fwrite(kEnd.data(), 1, kEnd.size(), file_.get());
  const bool good = std::ferror(file_.get()) == 0;
  const bool closed = std::fclose(file_.release()) == 0;
  if (good && closed && std::rename(part_.c_str(), path_.c_str()) == 0) return {};
  const int why = errno;
  std::remove(part_.c_str());
  return cannot_write(path_, why);
}

}  // namespace ciranda
