#include "core/transport/local/memory_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <utility>

namespace ciranda {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// Returns the kernel's estimate of the memory that is available (MemAvailable), or 0 if unknown. A
// memfd has no limit of its own: reserving more would wake the OOM killer instead of failing.
std::size_t available_bytes() {
  std::FILE* file = std::fopen("/proc/meminfo", "re");
  if (file == nullptr) return 0;
  char line[128];
  unsigned long long kib = 0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, "MemAvailable: %llu kB", &kib) == 1) break;
  }
  std::fclose(file);
  return static_cast<std::size_t>(kib) * 1024;
}

Error cannot_reserve(std::size_t bytes, int error_number) {
  return Error::from_errno("cannot reserve " + std::to_string(bytes) + " bytes of shared memory",
                           error_number);
}

Error unlike_announced(std::size_t bytes, std::size_t announced) {
  return {.code = ErrorCode::kMalformed,
          .text = "a peer passed shared memory of " + std::to_string(bytes) + " bytes where " +
                  std::to_string(announced) + " were announced"};
}

}  // namespace

Result<MemorySegment::Created> MemorySegment::create(std::size_t bytes, std::size_t ready_bytes) {
  const std::size_t size = whole_pages(bytes == 0 ? 1 : bytes);
  const std::size_t available = available_bytes();
  if (available > 0 && size > available) return cannot_reserve(size, ENOMEM);
  Fd fd(::memfd_create("ciranda", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Error::from_errno("memfd_create", errno);
  const int refused = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(size));
  if (refused != 0) return cannot_reserve(size, refused);
  if (::fcntl(fd.get(), F_ADD_SEALS, kSizeSeals) != 0) {
    return Error::from_errno("cannot seal shared memory", errno);
  }
  auto segment = map(fd, size, ready_bytes);
  if (!segment) return segment.error();
  return Created{std::move(segment).value(), std::move(fd)};
}

Result<MemorySegment> MemorySegment::open(Fd fd, std::size_t bytes, std::size_t ready_bytes) {
  const auto size = sealed_bytes(fd);
  if (!size) return size.error();
  if (size.value() != bytes) return unlike_announced(size.value(), bytes);
  return map(fd, bytes, ready_bytes);
}

Result<MemorySegment> MemorySegment::open_whole(const Fd& fd, std::size_t bytes) {
  const auto size = sealed_bytes(fd);
  if (!size) return size.error();
  if (size.value() < bytes) return unlike_announced(size.value(), bytes);
  return map(fd, size.value(), kAllReady);
}

Result<std::size_t> MemorySegment::sealed_bytes(const Fd& fd) {
  struct stat facts {};
  if (::fstat(fd.get(), &facts) != 0) return Error::from_errno("fstat of shared memory", errno);
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (facts.st_size <= 0 || seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return Error{.code = ErrorCode::kMalformed,
                 .text = "a peer passed memory of " + std::to_string(facts.st_size) +
                         " bytes whose size is not sealed (seals " + std::to_string(seals) + ")"};
  }
  return static_cast<std::size_t>(facts.st_size);
}

Result<MemorySegment> MemorySegment::map(const Fd& fd, std::size_t bytes, std::size_t ready_bytes) {
  auto memory = SharedMapping::map(fd.get(), bytes, ready_bytes);
  if (!memory) return memory.error();
  MemorySegment segment;
  segment.memory_ = std::move(memory).value();
  return segment;
}

}  // namespace ciranda
