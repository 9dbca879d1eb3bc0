#pragma once

#include <sys/types.h>
#include <sys/un.h>

#include <cstdint>
#include <string>

#include "core/base/fd.h"
#include "core/base/result.h"

namespace ciranda {

// The folder in which the ranks of one job and host meet, from rank 0's side. It must be private
// (mode 0700, same user) and is created if missing. While this object lives it keeps a lock on the
// folder, so that no other job meets there. Its destructor removes a folder that it created. A
// parameter server uses one to listen in a separate folder.
class JobFolder {
 public:
  // `job_id` and `who` (the listener) appear in error messages only.
  JobFolder(std::string folder, std::string job_id, std::string who = "rank 0");
  ~JobFolder();
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;

  // Locks the folder and listens. `callers` is the length of the accept queue. Call it once.
  // Returns kInvalidArgument if the folder is not private or another process holds it.
  Status listen(int callers);
  int listener() const { return listener_.get(); }
  // Closes and unlinks the socket. A process that comes for the next meeting waits for the next
  // listener.
  void stop_listening();
  // Gives up the folder in a forked child without unlocking or removing it, because the parent
  // still holds it. Async-signal-safe.
  void forget_in_forked_child() noexcept;

 private:
  Status claim();

  const std::string folder_;
  const std::string job_id_;
  const std::string who_;
  sockaddr_un address_{};
  bool made_ = false;  // this object created the folder and must remove it
  bool bound_ = false;
  Fd claim_;  // the folder, locked
  Fd listener_;
};

// Returns the process at the other end of a Unix socket, or kInvalidArgument if it belongs to
// another user, whom it names. A listener checks every caller, because the folder may no longer be
// private.
Result<pid_t> same_user_pid(int socket);

// Returns true if a process holds the lock of the folder, false if none does or /proc/locks does
// not show it. Does not try to take the lock.
bool is_taken(const std::string& folder);

// Connects to the listener in `folder`, from the side of the other ranks. Blocks until `who`
// listens there; returns kTimeout at the deadline (monotonic_ns). Returns kInvalidArgument if the
// folder is not private as above or the listener belongs to another user. `timeout_ms` appears in
// the message of kTimeout only. Returns kShutdown when `interrupt` (-1: none) is readable.
Result<Fd> connect_in_job_folder(const std::string& folder, std::uint64_t deadline_ns,
                                 std::uint64_t timeout_ms, const std::string& who = "rank 0",
                                 int interrupt = -1);

}  // namespace ciranda
