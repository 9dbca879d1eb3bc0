#include "core/ps/io/snapshot.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <utility>
#include <vector>

#include "core/base/assert.h"
#include "core/base/fd.h"
#include "core/ps/io/record_file.h"

namespace ciranda::ps {
namespace {

constexpr int kChildNiceness = 10;

}  // namespace

Status sync_folder(const std::string& folder) {
  const Fd opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.valid() && ::fsync(opened.get()) == 0) return {};
  return Error::from_errno("cannot write " + folder, errno);
}

Status finish_file(const FileNames& names) {
  if (::rename(names.unfinished.c_str(), names.finished.c_str()) != 0) {
    return Error::from_errno("cannot make " + names.finished, errno);
  }
  return sync_folder(std::filesystem::path(names.finished).parent_path());
}

Status write_snapshot(ServerProtocol& protocol, const FileNames& names, RecordKey key) {
  auto writer = RecordWriter::create(names.unfinished, std::move(key));
  if (!writer) return writer.error();
  std::vector<std::byte> note;
  protocol.save(note);
  for (const std::span<std::byte> array : protocol.arrays()) {
    CIRANDA_TRY(writer.value().append(note, {array}));
    note.clear();
  }
  CIRANDA_TRY(writer.value().sync());
  return finish_file(names);
}

Status SnapshotChild::begin(ServerProtocol& protocol, FileNames names, const char* what) {
  CIRANDA_ASSERT(child_ == 0);  // two would write the same file
  names_ = std::move(names);
  auto key = RecordKey::make();
  if (!key) return key.error();
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return Error::from_errno("fork", errno);
  if (child > 0) {
    child_ = child;
    return {};
  }
  // The child must not outlive the server, whose successor writes the same files, and must not keep
  // its connections open.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  ::close_range(3, ~0u, 0);
  ::setpriority(PRIO_PROCESS, 0, kChildNiceness);
  const Status written = write_snapshot(protocol, names_, std::move(key).value());
  if (!written) {
    std::fprintf(stderr, "ciranda-ps: %s: %s\n", what, written.error().text.c_str());
    ::unlink(names_.unfinished.c_str());
  }
  ::_exit(written ? 0 : 1);
}

bool SnapshotChild::look_after(bool wait) {
  if (child_ == 0) return true;
  int how = 0;
  pid_t ended = 0;
  do {
    ended = ::waitpid(child_, &how, wait ? 0 : WNOHANG);
  } while (ended < 0 && errno == EINTR);
  if (ended == 0) return false;
  child_ = 0;
  return true;
}

bool SnapshotChild::made() const {
  CIRANDA_ASSERT(child_ == 0);
  return ::access(names_.finished.c_str(), F_OK) == 0;
}

void SnapshotChild::end() {
  if (child_ == 0) return;
  ::kill(child_, SIGKILL);
  look_after(/*wait=*/true);
}

}  // namespace ciranda::ps
