#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/fd.h"
#include "core/base/result.h"

namespace ciranda {

// A Chrome trace on disk, to which ranks add their events one after the other. The file is always
// complete: a rank writes a new file, which replaces the old one at the end.
class TimelineFile {
 public:
  // Begins with the events of the file at `path` if that file is of the same `job`, and without any
  // otherwise. Blocks while another process adds to a file of the same folder. Errors name the
  // file.
  static Result<TimelineFile> open(const std::string& path, const std::string& job);
  TimelineFile(TimelineFile&&) = default;
  TimelineFile& operator=(TimelineFile&&) = delete;
  // Leaves the file as it was, unless close() was called.
  ~TimelineFile();

  // Adds one event as JSON, or several with kBetween between them.
  void add(std::string_view events);
  Status close();

  static constexpr std::string_view kBetween = ",\n";

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, CloseFile>;

  TimelineFile(std::string path, Fd folder) : path_(std::move(path)), folder_(std::move(folder)) {}
  Status begin(const std::string& head);
  bool copy_events(const std::string& head);

  std::string path_;
  std::string part_;  // path of the new file
  Fd folder_;         // locked
  File file_;
  bool has_events_ = false;
};

// The events that one rank adds to a file.
struct TimelinePart {
  std::string path = {};  // empty: nothing to write
  std::string job = {};
  std::vector<std::string> events = {};  // each as for TimelineFile::add()
};
Status write(const TimelinePart& part);

// Returns the text as a JSON string, in quotes.
std::string json_text(std::string_view text);

// Returns an error if no file can be written at `path`.
Status check_folder(const std::string& path);

}  // namespace ciranda
