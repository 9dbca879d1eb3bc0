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

// Arena memory that this rank holds: part of a segment that all ranks of the host map, at a
// multiple of 64 bytes. `lease` keeps the memory mapped, even after the World is gone. The memory
// is reused when the last copy of the lease is gone.
struct ArenaBuffer {
  ArenaRef ref;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<void> lease = {};
};

// The segments that this process maps: its own and those that its peers announced. A process can
// map only about 65,000 pieces, and each segment takes two in every rank of the host
// (SharedMapping). Segments are therefore cut into blocks. Small blocks share segments, which get
// larger as the rank allocates more.
class SegmentTable {
 public:
  explicit SegmentTable(const LocalMesh& mesh);

  // Returns a block of at least `bytes` bytes, zeroed if it is new, in a segment that every peer
  // has been told of. Blocks only while a peer's socket buffer is full. Thread-safe.
  Result<ArenaBuffer> allocate(std::size_t bytes) EXCLUDES(announce_mutex_, mutex_);

  // Adds a segment that a peer announced.
  Status add(Rank owner, std::uint32_t number, MemorySegment segment) EXCLUDES(mutex_);
  // Returns null until the announcement has arrived, and kMalformed if no block can be there.
  Result<std::byte*> resolve(Rank owner, const ArenaRef& ref, std::uint64_t bytes) EXCLUDES(mutex_);
  // Returns a lease that keeps a resolved block mapped, even after the World is gone, and keeps its
  // memory from being reused. The owner must hold the block until it knows of this lease.
  std::shared_ptr<void> lease(Rank owner, const ArenaRef& ref) EXCLUDES(mutex_);

 private:
  // A block of this rank's memory, with the count of its leases.
  struct Block {
    MemorySegment segment;
    std::uint32_t number = 0;  // of the segment
    std::size_t begin = 0;     // where it starts in the segment, in bytes
    std::size_t bytes = 0;
  };
  struct Pool;  // blocks that this rank has given back, shared with the leases

  ArenaBuffer lend(Block block);
  // Creates a segment with room for `bytes` bytes and returns it as one block.
  Result<Block> create(std::size_t bytes) REQUIRES(announce_mutex_) EXCLUDES(mutex_);

  const LocalMesh& mesh_;
  std::shared_ptr<Pool> pool_;
  // Keeps announcements in the order of their numbers. Taken before mutex_, and held while a peer's
  // socket is full. The peer's own announcements can be added meanwhile, under mutex_.
  Mutex announce_mutex_;
  std::size_t own_bytes_ GUARDED_BY(announce_mutex_) = 0;  // of all segments of this rank
  Block rest_ GUARDED_BY(announce_mutex_);  // the unused part of the latest shared segment
  Mutex mutex_;
  std::vector<std::vector<MemorySegment>> segments_ GUARDED_BY(mutex_);  // by owner, number
};

}  // namespace ciranda
