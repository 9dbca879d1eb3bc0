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

// A Chrome trace on disk, to which ranks add their events one after the other. It is always whole:
// who adds writes a new one beside it, which replaces it at the end.
class TimelineFile {
 public:
  // Begins with what the file at `path` has, if it is of the same `job`; anything else goes. Blocks
  // while another process adds to a file of that folder. Errors name the file.
  static Result<TimelineFile> open(const std::string& path, const std::string& job);
  TimelineFile(TimelineFile&&) = default;
  TimelineFile& operator=(TimelineFile&&) = delete;
  // Without close() the file stays as it was.
  ~TimelineFile();

  // One event as JSON, or several with kBetween between them.
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
  std::string part_;  // the new one
  Fd folder_;         // locked
  File file_;
  bool has_events_ = false;
};

// What one rank adds.
struct TimelinePart {
  std::string path = {};  // empty: nothing
  std::string job = {};
  std::vector<std::string> events = {};  // each as for TimelineFile::add()
};
Status write(const TimelinePart& part);

// As JSON, with its quotes.
std::string json_text(std::string_view text);

// What is wrong about a file at `path`, where there cannot be one.
Status check_folder(const std::string& path);

}  // namespace ciranda
