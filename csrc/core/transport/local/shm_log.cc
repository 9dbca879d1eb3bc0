#include "core/transport/local/shm_log.h"

#include <algorithm>
#include <cstring>

#include "core/base/assert.h"
#include "core/base/yield_point.h"

namespace ciranda {

std::size_t ShmLog::cells_for(std::size_t frame_bytes) {
  return (sizeof(FrameHeader) + frame_bytes + kCellPayloadBytes - 1) / kCellPayloadBytes;
}

std::size_t ShmLog::memory_bytes(int ranks) {
  return sizeof(Cursor) * (1 + static_cast<std::size_t>(ranks)) + sizeof(Cell) * kCellCount;
}

ShmLog::ShmLog(std::byte* memory, int ranks, Rank self)
    : ranks_(ranks),
      self_(self),
      tail_(reinterpret_cast<Cursor*>(memory)),
      readers_(tail_ + 1),
      cells_(reinterpret_cast<Cell*>(readers_ + ranks)) {
  CIRANDA_ASSERT(reinterpret_cast<std::uintptr_t>(memory) % alignof(Cursor) == 0);
  CIRANDA_ASSERT(ranks <= kLocalRanksMax && self >= 0 && self < ranks);
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
}

std::uint64_t ShmLog::slowest_reader() const {
  std::uint64_t slowest = read_;
  for (int rank = 0; rank < ranks_; ++rank) {
    slowest = std::min(slowest, readers_[rank].value.load(std::memory_order_acquire));
  }
  return slowest;
}

bool ShmLog::try_append(std::span<const std::byte> frame, Rank from, bool ordered) {
  CIRANDA_ASSERT(frame.size() <= kFrameBytesMax && from >= 0);
  const std::uint64_t cells = cells_for(frame.size());
  std::uint64_t first = tail_->value.load(std::memory_order_relaxed);
  do {
    if (first + cells > known_slowest_ + kCellCount) {
      known_slowest_ = slowest_reader();
      if (first + cells > known_slowest_ + kCellCount) return false;
    }
  } while (!tail_->value.compare_exchange_weak(first, first + cells, std::memory_order_relaxed));

  yield_point();
  const FrameHeader header{.bytes = static_cast<std::uint32_t>(frame.size()),
                           .from = static_cast<std::uint32_t>(from) & 0x7fffffffu,
                           .ordered = ordered ? 1u : 0u};
  std::size_t written = 0;
  for (std::uint64_t i = 0; i < cells; ++i) {
    Cell& target = cell(first + i);
    std::size_t room = kCellPayloadBytes;
    std::byte* place = target.payload;
    if (i == 0) {
      std::memcpy(place, &header, sizeof header);
      place += sizeof header;
      room -= sizeof header;
    }
    const std::size_t piece = std::min(room, frame.size() - written);
    if (piece > 0) std::memcpy(place, frame.data() + written, piece);
    written += piece;
    target.stamp.store(first + i + 1, std::memory_order_release);
  }
  return true;
}

std::optional<ShmLog::Entry> ShmLog::next() {
  // It has not stopped reading.
  CIRANDA_ASSERT(readers_[self_].value.load(std::memory_order_relaxed) <= read_);
  // The caller is done with the previous frame, so writers may reuse its cells.
  if (readers_[self_].value.load(std::memory_order_relaxed) != read_) {
    readers_[self_].value.store(read_, std::memory_order_release);
  }
  const Cell& head = cell(read_);
  if (head.stamp.load(std::memory_order_acquire) != read_ + 1) return std::nullopt;
  FrameHeader header;
  std::memcpy(&header, head.payload, sizeof header);
  // Another rank wrote the length: limit it, so that it cannot lead outside the ring.
  const std::size_t bytes = std::min<std::size_t>(header.bytes, kFrameBytesMax);
  const std::uint64_t cells = cells_for(bytes);
  Entry entry{.from = static_cast<Rank>(header.from), .ordered = header.ordered != 0, .frame = {}};
  if (cells == 1) {
    entry.frame = {head.payload + sizeof header, bytes};
  } else {
    assembled_.resize(bytes);
    std::size_t taken = 0;
    for (std::uint64_t i = 0; i < cells; ++i) {
      const Cell& source = cell(read_ + i);
      // The writer has taken all cells of its frame and is about to fill them; try again later.
      if (source.stamp.load(std::memory_order_acquire) != read_ + i + 1) return std::nullopt;
      const std::size_t skip = i == 0 ? sizeof header : 0;
      const std::size_t piece = std::min(kCellPayloadBytes - skip, bytes - taken);
      std::memcpy(assembled_.data() + taken, source.payload + skip, piece);
      taken += piece;
    }
    entry.frame = assembled_;
  }
  read_ += cells;
  return entry;
}

void ShmLog::stop_reading() {
  readers_[self_].value.store(UINT64_MAX, std::memory_order_release);
}

bool ShmLog::lags_behind(Rank rank) const {
  CIRANDA_ASSERT(rank >= 0 && rank < ranks_);
  return readers_[rank].value.load(std::memory_order_acquire) < read_;
}

}  // namespace ciranda
