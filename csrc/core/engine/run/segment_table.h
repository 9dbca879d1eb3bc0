#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/transport/local/local_mesh.h"
#include "core/transport/local/memory_segment.h"
#include "core/wire/messages.h"

namespace ciranda {

// Arena memory of this rank: a piece of a segment that all ranks of the host map, at a multiple of
// 64 bytes. Keeps the mapping alive, also after the World is gone; the memory is reused once the
// last copy is gone.
struct ArenaBuffer {
  ArenaRef ref;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<void> lease = {};
};

// Who mapped what: this rank's segments and those that its peers announced. A segment is cut into
// blocks, as a process can map some 65,000 pieces only, and each segment is two in every rank of
// the host (SharedMapping): small blocks share segments, which grow with what the rank has.
class SegmentTable {
 public:
  explicit SegmentTable(const LocalMesh& mesh);

  // A zeroed (when new) block of at least `bytes` bytes, in a segment that every peer has been told
  // of. Blocking only while a peer's socket buffer is full. Thread-safe.
  Result<ArenaBuffer> allocate(std::size_t bytes) EXCLUDES(announce_mutex_, mutex_);

  // A peer's announcement.
  Status add(Rank owner, std::uint32_t number, MemorySegment segment) EXCLUDES(mutex_);
  // Null until the announcement has arrived; kMalformed when no block can lie there.
  Result<std::byte*> resolve(Rank owner, const ArenaRef& ref, std::uint64_t bytes) EXCLUDES(mutex_);
  // Keeps the mapping of a resolved block alive, also after the World is gone, and its memory from
  // being lent again. The owner must hold the block until it has heard that this rank does.
  std::shared_ptr<void> lease(Rank owner, const ArenaRef& ref) EXCLUDES(mutex_);

 private:
  // Of this rank's memory, with the count of its leases.
  struct Block {
    MemorySegment segment;
    std::uint32_t number = 0;  // of the segment
    std::size_t begin = 0;     // in it, in bytes
    std::size_t bytes = 0;
  };
  struct Pool;  // blocks that this rank has given back, shared with the leases

  ArenaBuffer lend(Block block);
  // A segment with room for a block of that many bytes, as one block.
  Result<Block> create(std::size_t bytes) REQUIRES(announce_mutex_) EXCLUDES(mutex_);

  const LocalMesh& mesh_;
  std::shared_ptr<Pool> pool_;
  // Announcements go out in the order of their numbers. Taken before mutex_, and held while a
  // peer's socket is full; the peer's own announcements are taken in meanwhile under mutex_.
  Mutex announce_mutex_;
  std::size_t own_bytes_ GUARDED_BY(announce_mutex_) = 0;  // of all segments of this rank
  Block rest_ GUARDED_BY(announce_mutex_);  // of the latest segment that small blocks share
  Mutex mutex_;
  std::vector<std::vector<MemorySegment>> segments_ GUARDED_BY(mutex_);  // by owner, number
};

}  // namespace ciranda
