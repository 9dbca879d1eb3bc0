#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "core/base/result.h"
#include "core/ps/decide/server_protocol.h"

namespace ciranda::ps {

// A file under two names: while it is written, and once it is whole, on the disk.
struct FileNames {
  std::string unfinished;
  std::string finished;
};

// All that a server holds, in one file of records: what ServerProtocol::save() says with the first
// of ServerProtocol::arrays(), then the others. Blocks for the disk.
Status write_snapshot(ServerProtocol& protocol, const FileNames& names);

// What names a folder has is on the disk when it returns.
Status sync_folder(const std::string& folder);
// `names.unfinished` gets its other name, for good.
Status finish_file(const FileNames& names);

// Makes a snapshot beside the server: a forked child sees the memory as it was. Not thread-safe.
class SnapshotChild {
 public:
  SnapshotChild() = default;
  ~SnapshotChild() { end(); }
  SnapshotChild(const SnapshotChild&) = delete;
  SnapshotChild& operator=(const SnapshotChild&) = delete;

  // None is being made. What keeps the child from it is said on stderr, behind `what`.
  Status begin(ServerProtocol& protocol, FileNames names, const char* what);
  bool running() const { return child_ != 0; }
  // Whether it has ended; waits for it if told so.
  bool look_after(bool wait);
  // Whether the file is there, of the one that has ended.
  bool made() const;
  // At once.
  void end();

 private:
  pid_t child_ = 0;  // 0: none
  FileNames names_;
};

// How often one looks after a child that is running.
inline constexpr std::uint64_t kChildPollNs = 50'000'000;

}  // namespace ciranda::ps
