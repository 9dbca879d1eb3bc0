#include "core/engine/run/segment_table.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/base/assert.h"

namespace ciranda {
namespace {

// The first cache line of a block counts the leases of every rank but the owner (I13). Any rank of
// the host can write to it. If the count is too high, the memory is never reused, as after the
// death of a peer with a lease. If it is too low, the memory is reused too early, but that peer can
// read and damage nothing that it could not before.
constexpr std::size_t kCountBytes = 64;
using PeerLeases = std::atomic<std::uint64_t>;
static_assert(PeerLeases::is_always_lock_free, "processes share it");

PeerLeases& peer_leases(const MemorySegment& segment, std::size_t block) {
  return *reinterpret_cast<PeerLeases*>(segment.data() + block);
}

// Small blocks share segments of an eighth of what this rank has already, so that at most that part
// is unused. A block is small if four of its size fit into such a segment.
constexpr std::size_t kSharedBytesMin = std::size_t{256} << 10;
constexpr std::size_t kSharedBytesMax = std::size_t{64} << 20;
constexpr std::size_t kShareOfAll = 8;
constexpr std::size_t kSmallBlocks = 4;

}  // namespace

struct SegmentTable::Pool {
  Mutex mutex;
  std::multimap<std::size_t, Block> free GUARDED_BY(mutex);  // given back by this rank, by bytes

  void give_back(Block block) EXCLUDES(mutex) {
    CIRANDA_ASSERT(block.bytes >= kCountBytes && block.begin % kCountBytes == 0);  // by lend()
    const MutexLock lock(mutex);
    const std::size_t bytes = block.bytes;
    free.emplace(bytes, std::move(block));
  }

  // Acquire: a thread that reads zero also sees all that the peers did before they released their
  // leases. Each peer releases with a read-modify-write, so the last value covers all of them.
  std::optional<Block> take(std::size_t bytes) EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    const auto end = free.upper_bound(2 * bytes + kSharedBytesMin / kSmallBlocks);
    for (auto found = free.lower_bound(bytes); found != end; ++found) {
      const Block& block = found->second;
      if (peer_leases(block.segment, block.begin).load(std::memory_order_acquire) != 0) continue;
      return std::move(free.extract(found).mapped());
    }
    return std::nullopt;
  }
};

SegmentTable::SegmentTable(const LocalMesh& mesh)
    : mesh_(mesh),
      pool_(std::make_shared<Pool>()),
      segments_(static_cast<std::size_t>(mesh.size)) {}

Result<ArenaBuffer> SegmentTable::allocate(std::size_t bytes) {
  constexpr std::size_t kBytesMax = std::size_t{1} << 60;  // more than any machine has
  const std::size_t wanted =
      (std::min(bytes, kBytesMax) + 2 * kCountBytes - 1) / kCountBytes * kCountBytes;
  if (auto reused = pool_->take(wanted)) return lend(*std::move(reused));

  const MutexLock announcing(announce_mutex_);
  if (rest_.bytes < wanted) {
    const std::size_t shared =
        std::clamp(own_bytes_ / kShareOfAll, kSharedBytesMin, kSharedBytesMax);
    const bool small = wanted <= shared / kSmallBlocks;
    auto created = create(small ? (shared + wanted - 1) / wanted * wanted : wanted);
    if (!created) return created.error();
    if (!small) return lend(std::move(created).value());
    if (rest_.bytes > kCountBytes) pool_->give_back(rest_);
    rest_ = std::move(created).value();
  }
  CIRANDA_ASSERT(rest_.bytes >= wanted);
  Block block = rest_;
  block.bytes = wanted;
  rest_.begin += wanted;
  rest_.bytes -= wanted;
  return lend(std::move(block));
}

ArenaBuffer SegmentTable::lend(Block block) {
  // I13: the count of the peers' leases is the block's own first line.
  CIRANDA_ASSERT(block.begin % kCountBytes == 0 && block.bytes >= kCountBytes);
  CIRANDA_ASSERT(block.begin + block.bytes <= block.segment.bytes());
  ArenaBuffer buffer{.ref = {.segment = block.number, .offset = block.begin + kCountBytes},
                     .data = block.segment.data() + block.begin + kCountBytes,
                     .bytes = block.bytes - kCountBytes};
  buffer.lease = std::shared_ptr<void>(
      buffer.data, [pool = pool_, block = std::move(block)](void*) { pool->give_back(block); });
  return buffer;
}

Result<SegmentTable::Block> SegmentTable::create(std::size_t bytes) {
  auto created = MemorySegment::create(bytes);
  if (!created) return created.error();
  const auto& [segment, fd] = created.value();
  own_bytes_ += segment.bytes();
  std::uint32_t number = 0;
  {
    const MutexLock lock(mutex_);
    auto& own = segments_[static_cast<std::size_t>(mesh_.self)];
    number = static_cast<std::uint32_t>(own.size());
    own.push_back(segment);
  }
  for (const LocalMesh::Peer& peer : mesh_.peers) {
    if (!peer.socket.valid()) continue;
    // The closed socket will show that a peer is gone.
    (void)send_message(peer.socket.get(), {.segment = number, .bytes = segment.bytes()}, fd.get());
  }
  return Block{.segment = segment, .number = number, .bytes = segment.bytes()};
}

Status SegmentTable::add(Rank owner, std::uint32_t number, MemorySegment segment) {
  CIRANDA_ASSERT(owner >= 0 && owner < mesh_.size && owner != mesh_.self);  // whose socket it is
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
  CIRANDA_ASSERT(owner >= 0 && owner < mesh_.size);
  const MutexLock lock(mutex_);
  const auto& theirs = segments_[static_cast<std::size_t>(owner)];
  if (ref.segment >= theirs.size()) return static_cast<std::byte*>(nullptr);
  const MemorySegment& segment = theirs[ref.segment];
  if (ref.offset < kCountBytes || ref.offset % kCountBytes != 0 || ref.offset > segment.bytes() ||
      bytes > segment.bytes() - ref.offset) {
    return Error{.code = ErrorCode::kMalformed,
                 .text = "rank " + std::to_string(owner) + " refers to " + std::to_string(bytes) +
                         " bytes at " + std::to_string(ref.offset) + " of an arena segment of " +
                         std::to_string(segment.bytes()),
                 .rank = owner};
  }
  return segment.data() + ref.offset;
}

std::shared_ptr<void> SegmentTable::lease(Rank owner, const ArenaRef& ref) {
  const MutexLock lock(mutex_);
  const auto& theirs = segments_[static_cast<std::size_t>(owner)];
  CIRANDA_ASSERT(ref.segment < theirs.size());  // by resolve(), which the caller has asked
  const MemorySegment& segment = theirs[ref.segment];
  CIRANDA_ASSERT(ref.offset >= kCountBytes && ref.offset % kCountBytes == 0 &&
                 ref.offset <= segment.bytes());  // I13: the count is the line before it
  const std::size_t block = ref.offset - kCountBytes;
  // Relaxed: the message that tells the owner of this lease orders it before the owner's release.
  peer_leases(segment, block).fetch_add(1, std::memory_order_relaxed);
  return {segment.data(), [segment, block](void*) {
            peer_leases(segment, block).fetch_sub(1, std::memory_order_release);
          }};
}

}  // namespace ciranda
