#include "core/runtime/segment_table.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

namespace ciranda {
namespace {

// The last cache line of a segment counts the leases that ranks have taken of it beside the owner's
// own (I13). Any rank of the host can write to it: too high, and the memory is never lent again,
// like that of a peer that died with a lease; too low, and it is lent too early, by which that peer
// can read and spoil nothing that it could not before.
constexpr std::size_t kCountBytes = 64;
using PeerLeases = std::atomic<std::uint64_t>;
static_assert(PeerLeases::is_always_lock_free, "processes share it");

std::size_t payload_bytes(const MemorySegment& segment) {
  return segment.bytes() - kCountBytes;
}

bool has_count(const MemorySegment& segment) {
  return segment.bytes() > kCountBytes && segment.bytes() % kCountBytes == 0;
}

PeerLeases& peer_leases(const MemorySegment& segment) {
  return *reinterpret_cast<PeerLeases*>(segment.data() + payload_bytes(segment));
}

// Acquire: whoever sees zero also sees all that the peers did before they let go. Each of them
// released with a read-modify-write, so that the last one's value speaks for all.
bool held_by_peer(const MemorySegment& segment) {
  return peer_leases(segment).load(std::memory_order_acquire) != 0;
}

}  // namespace

struct SegmentTable::Pool {
  struct Free {
    std::uint32_t number;
    MemorySegment segment;
  };
  Mutex mutex;
  std::vector<Free> free GUARDED_BY(mutex);  // by this rank; a peer may hold it still
};

SegmentTable::SegmentTable(const LocalMesh& mesh)
    : mesh_(mesh),
      pool_(std::make_shared<Pool>()),
      segments_(static_cast<std::size_t>(mesh.size)) {}

Result<ArenaBuffer> SegmentTable::allocate(std::size_t bytes) {
  const auto lend = [this](std::uint32_t number, const MemorySegment& segment) {
    ArenaBuffer buffer{.ref = {.segment = number, .offset = 0},
                       .data = segment.data(),
                       .bytes = payload_bytes(segment)};
    buffer.lease = std::shared_ptr<void>(segment.data(), [pool = pool_, number, segment](void*) {
      const MutexLock lock(pool->mutex);
      pool->free.push_back({number, segment});
    });
    return buffer;
  };
  {
    const MutexLock lock(pool_->mutex);
    for (auto candidate = pool_->free.begin(); candidate != pool_->free.end(); ++candidate) {
      const std::size_t room = payload_bytes(candidate->segment);
      if (room < bytes || room > 2 * bytes + 65536 || held_by_peer(candidate->segment)) continue;
      const Pool::Free reused = *candidate;
      pool_->free.erase(candidate);
      return lend(reused.number, reused.segment);
    }
  }
  auto created = MemorySegment::create(std::max(bytes, bytes + kCountBytes));  // no overflow
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
  if (!has_count(segment)) {
    return Error{.code = ErrorCode::kMalformed,
                 .text = "rank " + std::to_string(owner) + " announced an arena segment of " +
                         std::to_string(segment.bytes()) +
                         " bytes, which leaves no room for the count of its leases",
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
  const std::size_t room = payload_bytes(segment);
  if (ref.offset > room || bytes > room - ref.offset) {
    return Error{.code = ErrorCode::kMalformed,
                 .text = "rank " + std::to_string(owner) + " refers to bytes " +
                         std::to_string(ref.offset) + " to " + std::to_string(ref.offset + bytes) +
                         " of an arena segment of " + std::to_string(room),
                 .rank = owner};
  }
  return segment.data() + ref.offset;
}

std::shared_ptr<void> SegmentTable::lease(Rank owner, std::uint32_t number) {
  const MutexLock lock(mutex_);
  const MemorySegment& segment = segments_[static_cast<std::size_t>(owner)][number];
  // Relaxed: what tells the owner of this lease orders it before the owner lets go.
  peer_leases(segment).fetch_add(1, std::memory_order_relaxed);
  return {segment.data(),
          [segment](void*) { peer_leases(segment).fetch_sub(1, std::memory_order_release); }};
}

}  // namespace ciranda
