#pragma once

#include <sys/types.h>
#include <sys/un.h>

#include <cstdint>
#include <string>

#include "core/base/fd.h"
#include "core/base/result.h"

namespace ciranda {

// The folder where the ranks of one job and host meet, from rank 0's side: it must be private (mode
// 0700, same user) and is created when missing. The place is rank 0's as long as this lives, so
// that no other job meets there; at its end a folder that it made is gone: nothing is left behind.
// A parameter server listens in a folder of its own.
class JobFolder {
 public:
  // `job_id` and `who` listens are for sentences.
  JobFolder(std::string folder, std::string job_id, std::string who = "rank 0");
  ~JobFolder();
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;

  // Once: listens for `callers`.
  Status listen(int callers);
  int listener() const { return listener_.get(); }
  // Nobody can connect from here on; who comes for the next meeting waits for the next listener.
  void stop_listening();
  // The place stays the parent's, also when the child outlives it. Async-signal-safe.
  void forget_in_forked_child() noexcept;

 private:
  Status claim();

  const std::string folder_;
  const std::string job_id_;
  const std::string who_;
  sockaddr_un address_{};
  bool made_ = false;  // by this, which has claimed it
  bool bound_ = false;
  Fd claim_;  // the folder, locked
  Fd listener_;
};

// The other end's process, of this user: kInvalidArgument says whose it is else. Whoever accepts
// asks for it, since a folder that was private may be so no more.
Result<pid_t> same_user_pid(int socket);

// Whether a rank 0 has the folder; false where that cannot be seen. Leaves the lock alone.
bool is_taken(const std::string& folder);

// The other ranks' side: waits until `who`, of this user, listens in `folder`, which is private as
// above. `timeout_ms` is for the sentence
// of kTimeout, at the deadline (monotonic_ns).
Result<Fd> connect_in_job_folder(const std::string& folder, std::uint64_t deadline_ns,
                                 std::uint64_t timeout_ms, const std::string& who = "rank 0");

}  // namespace ciranda
