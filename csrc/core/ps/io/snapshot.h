#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "core/base/result.h"
#include "core/ps/decide/server_protocol.h"
#include "core/ps/io/record_file.h"

namespace ciranda::ps {

// The two names of a file: while it is written, and once it is whole and on the disk.
struct FileNames {
  std::string unfinished;
  std::string finished;
};

// Writes all that a server holds into one file of records. The first record has the output of
// ServerProtocol::save() and the first of ServerProtocol::arrays(); each other array is a record.
// Blocks for the disk.
Status write_snapshot(ServerProtocol& protocol, const FileNames& names, RecordKey key);

// Blocks until the folder's list of files is on the disk.
Status sync_folder(const std::string& folder);
// Renames `names.unfinished` to `names.finished`, and blocks until that is on the disk.
Status finish_file(const FileNames& names);

// Makes a snapshot in a forked child, which sees the memory as it was at the fork. Meanwhile the
// server continues. Not thread-safe.
class SnapshotChild {
 public:
  SnapshotChild() = default;
  ~SnapshotChild() { end(); }
  SnapshotChild(const SnapshotChild&) = delete;
  SnapshotChild& operator=(const SnapshotChild&) = delete;

  // Starts the child; no other one may be running. The child prints its error on stderr, after
  // `what`.
  Status begin(ServerProtocol& protocol, FileNames names, const char* what);
  bool running() const { return child_ != 0; }
  // Returns true if no child is running any more; blocks until then if `wait` is set.
  bool look_after(bool wait);
  // Returns true if the child has finished its file; to be called once it has ended.
  bool made() const;
  // Kills the child, if one is running.
  void end();

 private:
  pid_t child_ = 0;  // 0: none
  FileNames names_;
};

// Interval of checks on a running child.
inline constexpr std::uint64_t kChildPollNs = 50'000'000;

}  // namespace ciranda::ps
