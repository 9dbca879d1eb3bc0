#pragma once

#include <cstddef>
#include <memory>

#include "core/base/result.h"
#include "core/transport/fd.h"

namespace ciranda {

// A piece of memory that several processes map: a memfd with no name anywhere, sealed against
// changes of its size, so that no peer can make an access fault and nothing outlives the job.
class MemorySegment {
 public:
  // Creates, reserves (posix_fallocate: running out of memory is an error here, never a SIGBUS
  // later), seals and maps `bytes` zeroed bytes, rounded up to whole pages.
  static Result<MemorySegment> create(std::size_t bytes);
  // Maps a segment that another process created. Refuses a descriptor whose size is not `bytes`
  // or whose size is not sealed.
  static Result<MemorySegment> open(Fd fd, std::size_t bytes);

  MemorySegment() = default;

  std::byte* data() const { return mapping_ ? mapping_->data : nullptr; }
  std::size_t bytes() const { return mapping_ ? mapping_->bytes : 0; }
  int fd() const { return mapping_ ? mapping_->fd.get() : -1; }

 private:
  struct Mapping {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    Fd fd;
    Mapping() = default;
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping();
  };
  static Result<MemorySegment> map(Fd fd, std::size_t bytes);

  std::shared_ptr<Mapping> mapping_;  // copies of a segment share one mapping
};

}  // namespace ciranda
