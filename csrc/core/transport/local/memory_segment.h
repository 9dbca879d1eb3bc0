#pragma once

#include <cstddef>
#include <memory>

#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/transport/local/shared_mapping.h"

namespace ciranda {

// A piece of memory that several processes map: a memfd with no name anywhere, sealed against
// changes of its size, so that no peer can make an access fault and nothing outlives the job. In a
// child made by fork it is private (SharedMapping).
class MemorySegment {
 public:
  struct Created;
  // Creates, reserves (posix_fallocate: running out of memory is an error here, never a SIGBUS
  // later), seals and maps `bytes` zeroed bytes, rounded up to whole pages.
  static Result<Created> create(std::size_t bytes);
  // Maps a segment that another process created. Refuses a descriptor whose size is not `bytes`
  // or whose size is not sealed.
  static Result<MemorySegment> open(Fd fd, std::size_t bytes);
  // Maps all of such a segment, which has to hold at least `bytes` bytes.
  static Result<MemorySegment> open_whole(const Fd& fd, std::size_t bytes);

  MemorySegment() = default;

  std::byte* data() const { return memory_ ? memory_->data() : nullptr; }
  std::size_t bytes() const { return memory_ ? memory_->bytes() : 0; }

 private:
  static Result<std::size_t> sealed_bytes(const Fd& fd);
  static Result<MemorySegment> map(const Fd& fd, std::size_t bytes);

  std::shared_ptr<const SharedMapping> memory_;  // copies of a segment share one mapping
};

// `fd` is for those who shall map it too. It is not kept: a job has more segments than a process
// may have files.
struct MemorySegment::Created {
  MemorySegment segment;
  Fd fd;
};

}  // namespace ciranda
