#include "core/transport/dial/job_key.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>

#include "core/transport/tcp/socket_io.h"

namespace ciranda {
namespace {

// One byte more than a key, so that a longer source is noticed.
using Buffer = std::array<std::byte, Secret::kBytes + 1>;

// Uses pread, because several ranks may have inherited one memfd and share its file offset. A pipe
// allows only read.
ssize_t read_some(int fd, std::span<std::byte> into, std::size_t offset) {
  ssize_t count = 0;
  do {
    count = ::pread(fd, into.data(), into.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == ESPIPE) count = ::read(fd, into.data(), into.size());
  } while (count < 0 && errno == EINTR);
  return count;
}

Result<std::size_t> read_all(int fd, Buffer& buffer, std::uint64_t deadline_ns) {
  std::size_t have = 0;
  while (have < buffer.size()) {
    auto readable = wait_readable(fd, deadline_ns);
    if (!readable) return readable.error();
    if (!readable.value()) {
      return Error{
          .code = ErrorCode::kTimeout,
          .text =
              "the job's key did not come through descriptor " + std::to_string(fd) +
              " in time; the program that starts the ranks must write the key and close its end"};
    }
    const ssize_t count = read_some(fd, std::span(buffer).subspan(have), have);
    if (count < 0) {
      return Error::from_errno("cannot read the job's key from descriptor " + std::to_string(fd),
                               errno);
    }
    if (count == 0) break;
    have += static_cast<std::size_t>(count);
  }
  return have;
}

Result<Secret> key_of(int fd, const std::string& where, std::uint64_t deadline_ns) {
  Buffer buffer;
  auto have = read_all(fd, buffer, deadline_ns);
  if (have && have.value() == Secret::kBytes) {
    return Secret::take(std::span(buffer).first<Secret::kBytes>());
  }
  wipe(buffer);
  if (!have) return have.error();
  return Error{.code = ErrorCode::kInvalidArgument,
               .text = "the job's key is exactly 32 bytes, but " + where + " holds " +
                       (have.value() > Secret::kBytes ? "more" : std::to_string(have.value()))};
}

Error unfit(const std::string& path, const std::string& why) {
  return {.code = ErrorCode::kInvalidArgument,
          .text = "the key file " + path + " " + why +
                  "; make one with (umask 077 && head -c 32 /dev/urandom > " + path + ")"};
}

}  // namespace

Result<Secret> read_key(Fd fd, std::uint64_t deadline_ns) {
  return key_of(fd.get(), "descriptor " + std::to_string(fd.get()), deadline_ns);
}

Result<Secret> read_key_file(const std::string& path) {
  // Mounted secrets are symbolic links, so the checks below look at the opened file. O_NONBLOCK: a
  // pipe in its place must not block this process.
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return Error::from_errno("cannot open the key file " + path, errno);
  struct stat facts {};
  if (::fstat(fd.get(), &facts) != 0) {
    return Error::from_errno("cannot look at the key file " + path, errno);
  }
  if (!S_ISREG(facts.st_mode)) return unfit(path, "is not a regular file");
  if (facts.st_uid != ::geteuid() && facts.st_uid != 0) {
    return unfit(path, "belongs to user " + std::to_string(facts.st_uid) + ", not to this user");
  }
  if ((facts.st_mode & 077) != 0) {
    return unfit(
        path, "can be read or written by other users (if nobody has read it, chmod 600 the file)");
  }
  return key_of(fd.get(), path, 0);
}

void fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::getrandom(bytes.data(), bytes.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    CIRANDA_ASSERT(count > 0);  // the kernel has no other way to fail
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

std::uint64_t random_number() {
  std::uint64_t number = 0;
  fill_random(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

}  // namespace ciranda
