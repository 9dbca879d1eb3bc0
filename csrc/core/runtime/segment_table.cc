#include "core/runtime/segment_table.h"

#include <string>
#include <utility>

namespace ciranda {

struct SegmentTable::Pool {
  struct Free {
    std::uint32_t number;
    MemorySegment segment;
  };
  Mutex mutex;
  std::vector<Free> free GUARDED_BY(mutex);
};

SegmentTable::SegmentTable(const LocalMesh& mesh)
    : mesh_(mesh),
      pool_(std::make_shared<Pool>()),
      segments_(static_cast<std::size_t>(mesh.size)) {}

Result<ArenaBuffer> SegmentTable::allocate(std::size_t bytes) {
  const auto lend = [this](std::uint32_t number, const MemorySegment& segment) {
    ArenaBuffer buffer{
        .ref = {.segment = number, .offset = 0}, .data = segment.data(), .bytes = segment.bytes()};
    buffer.lease = std::shared_ptr<void>(segment.data(), [pool = pool_, number, segment](void*) {
      const MutexLock lock(pool->mutex);
      pool->free.push_back({number, segment});
    });
    return buffer;
  };
  {
    const MutexLock lock(pool_->mutex);
    for (auto candidate = pool_->free.begin(); candidate != pool_->free.end(); ++candidate) {
      if (candidate->segment.bytes() < bytes || candidate->segment.bytes() > 2 * bytes + 65536) {
        continue;
      }
      const Pool::Free reused = *candidate;
      pool_->free.erase(candidate);
      return lend(reused.number, reused.segment);
    }
  }
  auto created = MemorySegment::create(bytes);
  if (!created) return created.error();
  const MutexLock announcing(announce_mutex_);
  std::uint32_t number = 0;
  {
    const MutexLock lock(mutex_);
    auto& own = segments_[static_cast<std::size_t>(mesh_.self)];
    number = static_cast<std::uint32_t>(own.size());
    own.push_back(created.value());
  }
  for (const LocalMesh::Peer& peer : mesh_.peers) {
    if (!peer.socket.valid()) continue;
    // A peer that is gone is noticed by its closed socket.
    (void)send_message(peer.socket.get(), {.segment = number, .bytes = created.value().bytes()},
                       created.value().fd());
  }
  return lend(number, created.value());
}

Status SegmentTable::add(Rank owner, std::uint32_t number, MemorySegment segment) {
  const MutexLock lock(mutex_);
  auto& theirs = segments_[static_cast<std::size_t>(owner)];
  if (number != theirs.size()) {
    return Error{.code = ErrorCode::kMalformed,
                 .text = "rank " + std::to_string(owner) + " announced arena segment " +
                         std::to_string(number) + " where " + std::to_string(theirs.size()) +
                         " was next",
                 .rank = owner};
  }
  theirs.push_back(std::move(segment));
  return {};
}

Result<std::byte*> SegmentTable::resolve(Rank owner, const ArenaRef& ref, std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  const auto& theirs = segments_[static_cast<std::size_t>(owner)];
  if (ref.segment >= theirs.size()) return static_cast<std::byte*>(nullptr);
  const MemorySegment& segment = theirs[ref.segment];
  if (ref.offset > segment.bytes() || bytes > segment.bytes() - ref.offset) {
    return Error{.code = ErrorCode::kMalformed,
                 .text = "rank " + std::to_string(owner) + " refers to bytes " +
                         std::to_string(ref.offset) + " to " + std::to_string(ref.offset + bytes) +
                         " of an arena segment of " + std::to_string(segment.bytes()),
                 .rank = owner};
  }
  return segment.data() + ref.offset;
}

std::shared_ptr<void> SegmentTable::lease(Rank owner, std::uint32_t number) {
  const MutexLock lock(mutex_);
  const MemorySegment& segment = segments_[static_cast<std::size_t>(owner)][number];
  return {segment.data(), [segment](void*) {}};
}

}  // namespace ciranda
