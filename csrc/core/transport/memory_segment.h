#pragma once

#include <cstddef>
#include <memory>

#include "core/base/result.h"
#include "core/transport/fd.h"
#include "core/transport/shared_mapping.h"

namespace ciranda {

// A piece of memory that several processes map: a memfd with no name anywhere, sealed against
// changes of its size, so that no peer can make an access fault and nothing outlives the job. In a
// child made by fork it is private (SharedMapping).
class MemorySegment {
 public:
  // Creates, reserves (posix_fallocate: running out of memory is an error here, never a SIGBUS
  // later), seals and maps `bytes` zeroed bytes, rounded up to whole pages.
  static Result<MemorySegment> create(std::size_t bytes);
  // Maps a segment that another process created. Refuses a descriptor whose size is not `bytes`
  // or whose size is not sealed.
  static Result<MemorySegment> open(Fd fd, std::size_t bytes);

  MemorySegment() = default;

  std::byte* data() const { return mapped_ ? mapped_->memory->data() : nullptr; }
  std::size_t bytes() const { return mapped_ ? mapped_->memory->bytes() : 0; }
  int fd() const { return mapped_ ? mapped_->fd.get() : -1; }

 private:
  struct Mapped {
    std::unique_ptr<SharedMapping> memory;
    Fd fd;
  };
  static Result<MemorySegment> map(Fd fd, std::size_t bytes);

  std::shared_ptr<const Mapped> mapped_;  // copies of a segment share one mapping
};

}  // namespace ciranda
