#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/transport/local_mesh.h"
#include "core/transport/memory_segment.h"
#include "core/wire/messages.h"

namespace ciranda {

// Arena memory of this rank: a piece of a segment that all ranks of the host map. Keeps the
// mapping alive, also after the World is gone; the memory is reused once the last copy is gone.
struct ArenaBuffer {
  ArenaRef ref;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<void> lease = {};
};

// Who mapped what: this rank's segments and those that its peers announced.
class SegmentTable {
 public:
  explicit SegmentTable(const LocalMesh& mesh);

  // A zeroed (when new) segment of at least `bytes` bytes, announced to every peer. Blocking only
  // while a peer's socket buffer is full. Thread-safe.
  Result<ArenaBuffer> allocate(std::size_t bytes) EXCLUDES(announce_mutex_, mutex_);

  // A peer's announcement.
  Status add(Rank owner, std::uint32_t number, MemorySegment segment) EXCLUDES(mutex_);
  // Null until the announcement has arrived; kMalformed when [offset, offset + bytes) is
  // outside.
  Result<std::byte*> resolve(Rank owner, const ArenaRef& ref, std::uint64_t bytes) EXCLUDES(mutex_);
  // Keeps the mapping of a resolved segment alive, also after the World is gone, and its memory
  // from being lent again. The owner must hold the segment until it has heard that this rank does.
  std::shared_ptr<void> lease(Rank owner, std::uint32_t number) EXCLUDES(mutex_);

 private:
  struct Pool;  // segments that this rank has given back, shared with the leases

  const LocalMesh& mesh_;
  std::shared_ptr<Pool> pool_;
  // Announcements go out in the order of their numbers. Taken before mutex_, and held while a
  // peer's socket is full; the peer's own announcements are taken in meanwhile under mutex_.
  Mutex announce_mutex_;
  Mutex mutex_;
  std::vector<std::vector<MemorySegment>> segments_ GUARDED_BY(mutex_);  // by owner, number
};

}  // namespace ciranda
