#include "core/transport/local/job_folder.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/transport/tcp/users.h"

namespace ciranda {
namespace {

constexpr const char* kSocketName = "local";
// While rank 0 does not listen yet: at once where all ranks meet again, later at start-up.
constexpr long kConnectRetryNsMin = 100'000;
constexpr long kConnectRetryNsMax = 2'000'000;

Error invalid(std::string text) {
  return {.code = ErrorCode::kInvalidArgument, .text = std::move(text)};
}

Result<sockaddr_un> socket_address(const std::string& folder) {
  const std::string path = folder + "/" + kSocketName;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return invalid("the job folder's path is too long for a Unix socket (" +
                   std::to_string(path.size()) + " bytes, at most " +
                   std::to_string(sizeof address.sun_path - 1) + "): " + path);
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

Status check_folder(const std::string& folder) {
  struct stat facts {};
  if (::lstat(folder.c_str(), &facts) != 0) {
    if (errno == ENOENT) return {};  // just removed: claim() creates it again
    return Error::from_errno("cannot look at the job folder " + folder, errno);
  }
  if (facts.st_uid != ::geteuid()) {
    return invalid(
        "the job folder " + folder + " belongs to " + name_of_user(facts.st_uid) +
        ", who could make it first because its path is predictable; set XDG_RUNTIME_DIR, or "
        "CIRANDA_JOB_DIR for all ranks of this host, to a folder that only you can write");
  }
  if (!S_ISDIR(facts.st_mode) || (facts.st_mode & 077) != 0) {
    return invalid("the job folder " + folder +
                   " is not a private directory of this user; remove it, or give it mode 0700");
  }
  return {};
}

}  // namespace

JobFolder::JobFolder(std::string folder, std::string job_id, std::string who)
    : folder_(std::move(folder)), job_id_(std::move(job_id)), who_(std::move(who)) {}

void JobFolder::stop_listening() {
  if (bound_) ::unlink(address_.sun_path);
  bound_ = false;
  listener_.reset();
}

void JobFolder::forget_in_forked_child() noexcept {
  bound_ = made_ = false;
  listener_.reset();
  claim_.reset();
}

JobFolder::~JobFolder() {
  stop_listening();
  if (made_) ::rmdir(folder_.c_str());
  // Closing the descriptor is not enough: a process forked meanwhile holds the same lock.
  if (claim_.valid()) ::flock(claim_.get(), LOCK_UN);
}

Status JobFolder::listen(int callers) {
  CIRANDA_ASSERT(!bound_ && !listener_.valid());  // it is called once
  auto address = socket_address(folder_);
  if (!address) return address.error();
  address_ = address.value();
  CIRANDA_TRY(claim());
  listener_ = Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_.valid()) return Error::from_errno("socket", errno);
  ::unlink(address_.sun_path);  // left by a job that was killed while it started
  if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address_), sizeof address_) != 0) {
    return Error::from_errno("cannot bind " + std::string(address_.sun_path), errno);
  }
  bound_ = true;
  if (::listen(listener_.get(), callers) != 0) return Error::from_errno("listen", errno);
  return {};
}

// The lock lets only one rank 0 unlink and bind the socket. It is on the folder itself, so it
// leaves no file behind, and the kernel drops it when its owner dies.
Status JobFolder::claim() {
  CIRANDA_ASSERT(!claim_.valid() && !made_);
  for (;;) {
    const bool made = ::mkdir(folder_.c_str(), 0700) == 0;
    if (!made && errno != EEXIST) {
      return Error::from_errno("cannot create the job folder " + folder_, errno);
    }
    CIRANDA_TRY(check_folder(folder_));
    Fd folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!folder.valid()) {
      if (errno == ENOENT) continue;  // the previous job has just removed it
      return Error::from_errno("cannot open the job folder " + folder_, errno);
    }
    if (::flock(folder.get(), LOCK_EX | LOCK_NB) == 0) {
      struct stat facts {};
      if (::fstat(folder.get(), &facts) == 0 && facts.st_nlink == 0) continue;
      claim_ = std::move(folder);
    } else if (errno == EWOULDBLOCK) {
      return invalid("another process is already " + who_ + " in the job folder " + folder_ +
                     "; this one is " + who_ + " of job '" + job_id_ +
                     "' too: start every rank once, or give this job a folder of its own "
                     "(CIRANDA_JOB_DIR), or a MASTER_PORT of its own");
    }  // else: the file system has no locks, so a second rank 0 goes unnoticed
    made_ = made;
    return {};
  }
}

bool is_taken(const std::string& folder) {
  struct stat facts {};
  if (::stat(folder.c_str(), &facts) != 0) return false;
  char place[64];
  (void)std::snprintf(place, sizeof place, " %02x:%02x:%lu ", major(facts.st_dev),
                      minor(facts.st_dev), static_cast<unsigned long>(facts.st_ino));
  std::FILE* locks = std::fopen("/proc/locks", "re");
  if (locks == nullptr) return false;
  bool found = false;
  char line[256];
  while (!found && std::fgets(line, sizeof line, locks) != nullptr) {
    // "1: FLOCK  ADVISORY  WRITE 1234 08:01:131 0 EOF"
    found = std::strstr(line, " FLOCK ") != nullptr && std::strstr(line, place) != nullptr;
  }
  std::fclose(locks);
  return found;
}

Result<pid_t> same_user_pid(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return Error::from_errno("SO_PEERCRED", errno);
  }
  if (peer.uid != ::geteuid()) {
    return invalid("a process of " + name_of_user(peer.uid) + " tried to join this job");
  }
  return peer.pid;
}

Result<Fd> connect_in_job_folder(const std::string& folder, std::uint64_t deadline_ns,
                                 std::uint64_t timeout_ms, const std::string& who, int interrupt) {
  auto address = socket_address(folder);
  if (!address) return address.error();
  for (timespec pause{.tv_sec = 0, .tv_nsec = kConnectRetryNsMin};;
       pause.tv_nsec = std::min(2 * pause.tv_nsec, kConnectRetryNsMax)) {
    Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.valid()) return Error::from_errno("socket", errno);
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.value()),
                  sizeof(sockaddr_un)) == 0) {
      // Checked only now: rank 0 may have created the folder while this rank waited.
      CIRANDA_TRY(check_folder(folder));
      const auto user = same_user_pid(socket.get());
      if (user) return socket;
      return invalid(who + " at " + std::string(address.value().sun_path) +
                     " is not this user's: " + user.error().text);
    }
    if (errno != ENOENT && errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) {
      return Error::from_errno("cannot connect to " + std::string(address.value().sun_path), errno);
    }
    if (monotonic_ns() >= deadline_ns) {
      return Error{.code = ErrorCode::kTimeout,
                   .text = who + " did not show up at " + std::string(address.value().sun_path) +
                           " within " + std::to_string(timeout_ms / 1000) + " s",
                   .rank = 0};
    }
    pollfd interrupted{.fd = interrupt, .events = POLLIN, .revents = 0};
    if (::ppoll(&interrupted, 1, &pause, nullptr) > 0) {
      return Error{.code = ErrorCode::kShutdown,
                   .text = "the wait for " + who + " was interrupted"};
    }
  }
}

}  // namespace ciranda
