#pragma once

#include <cstddef>
#include <limits>
#include <memory>

#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/transport/local/shared_mapping.h"

namespace ciranda {

// A piece of memory that several processes map: an anonymous memfd, so that nothing outlives the
// job. Its size is sealed, so that no peer can cause an access fault. In a child made by fork it is
// private (SharedMapping).
class MemorySegment {
 public:
  struct Created;
  static constexpr std::size_t kAllReady = std::numeric_limits<std::size_t>::max();
  // Creates, seals and maps `bytes` zeroed bytes, rounded up to whole pages. posix_fallocate
  // reserves them, so that running out of memory is an error here and never a SIGBUS later.
  // `ready_bytes`: see SharedMapping::map().
  static Result<Created> create(std::size_t bytes, std::size_t ready_bytes = kAllReady);
  // Maps a segment that another process created. Returns kMalformed if its size is not `bytes` or
  // is not sealed.
  static Result<MemorySegment> open(Fd fd, std::size_t bytes, std::size_t ready_bytes = kAllReady);
  // Maps such a segment completely. Returns kMalformed if it has fewer than `bytes` bytes or its
  // size is not sealed.
  static Result<MemorySegment> open_whole(const Fd& fd, std::size_t bytes);

  MemorySegment() = default;

  std::byte* data() const { return memory_ ? memory_->data() : nullptr; }
  std::size_t bytes() const { return memory_ ? memory_->bytes() : 0; }

 private:
  static Result<std::size_t> sealed_bytes(const Fd& fd);
  static Result<MemorySegment> map(const Fd& fd, std::size_t bytes, std::size_t ready_bytes);

  std::shared_ptr<const SharedMapping> memory_;  // copies of a segment share one mapping
};

// The caller passes `fd` to the processes that map the segment too, and then closes it: a job has
// more segments than a process may have open files.
struct MemorySegment::Created {
  MemorySegment segment;
  Fd fd;
};

}  // namespace ciranda
