#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/wire/types.h"

namespace ciranda {

// The one order of a host: a log in shared memory with many writers, which every rank reads from
// start to end. A frame's place is taken by one atomic add; nobody coordinates.
//
// The memory is a ring of cells of one cache line. Cell i of the endless log lies at i modulo the
// ring and is readable when its stamp says i + 1. A writer waits (try_append gives false) rather
// than overwrite a cell that the slowest reader has not passed.
class ShmLog {
 public:
  static constexpr std::size_t kCellBytes = 64;
  static constexpr std::size_t kCellPayloadBytes = kCellBytes - sizeof(std::uint64_t);
  static constexpr std::size_t kCellCount = 16384;  // 1 MiB
  static_assert((kCellCount & (kCellCount - 1)) == 0);
  static_assert(kFrameBytesMax + 64 < kCellCount * kCellPayloadBytes / 2,
                "two of the largest frames fit");

  static std::size_t memory_bytes(int ranks);

  // `memory` is zeroed, 64-byte aligned, memory_bytes(ranks) long and shared by all ranks.
  ShmLog(std::byte* memory, int ranks, Rank self);

  // False when the ring is full: the caller reads on (so that it is not itself the slowest) and
  // tries again. Thread-safe between ranks; one thread of a rank at a time.
  bool try_append(std::span<const std::byte> frame) { return try_append(frame, self_, true); }
  // The same in another rank's name. Not `ordered`: the frame is on its way to other hosts, and
  // takes its place when it comes back.
  bool try_append(std::span<const std::byte> frame, Rank from, bool ordered);

  struct Entry {
    Rank from = kNoRank;
    bool ordered = true;
    std::span<const std::byte> frame;  // valid until the next call of next()
  };
  // The next frame of the order, or nothing yet. One thread of a rank at a time.
  std::optional<Entry> next();
  // Whether the next frame has begun to appear.
  bool readable() const { return cell(read_).stamp.load(std::memory_order_acquire) == read_ + 1; }
  // Whether there is a next frame, be it one that is still written: it hides those behind it.
  bool unread() const { return tail_->value.load(std::memory_order_acquire) != read_; }

  // This rank reads no further: writers need not wait for it any more.
  void stop_reading();

  // True when `rank` has not yet read everything that this rank has read.
  bool lags_behind(Rank rank) const;

 private:
  struct alignas(kCellBytes) Cell {
    std::atomic<std::uint64_t> stamp;
    std::byte payload[kCellPayloadBytes];
  };
  struct alignas(128) Cursor {
    std::atomic<std::uint64_t> value;
  };
  struct FrameHeader {
    std::uint32_t bytes;
    std::uint32_t from : 31;
    std::uint32_t ordered : 1;
  };
  static std::size_t cells_for(std::size_t frame_bytes);
  std::uint64_t slowest_reader() const;
  Cell& cell(std::uint64_t index) const { return cells_[index & (kCellCount - 1)]; }

  const int ranks_;
  const Rank self_;
  Cursor* const tail_;     // cells handed out to writers
  Cursor* const readers_;  // cells read, by rank
  Cell* const cells_;
  std::uint64_t read_ = 0;            // this rank's own place
  std::uint64_t known_slowest_ = 0;   // a lower bound of slowest_reader()
  std::vector<std::byte> assembled_;  // a frame of several cells
};

}  // namespace ciranda
