#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/wire/types.h"

namespace ciranda {

// The log of a host: frames of all its ranks in one order, in shared memory. It has many writers,
// and every rank reads it from start to end. One atomic operation takes the place of a frame; there
// is no lock and no coordinator.
//
// The memory is a ring of cells of one cache line. Cell i of the endless log lies at i modulo the
// ring and is readable when its stamp is i + 1. A writer never overwrites a cell that the slowest
// reader has not passed: try_append() returns false instead.
class ShmLog {
 public:
  static constexpr std::size_t kCellBytes = 64;
  static constexpr std::size_t kCellPayloadBytes = kCellBytes - sizeof(std::uint64_t);
  static constexpr std::size_t kCellCount = 16384;  // 1 MiB
  static_assert((kCellCount & (kCellCount - 1)) == 0);
  static_assert(kFrameBytesMax + 64 < kCellCount * kCellPayloadBytes / 2,
                "two of the largest frames fit");

  static std::size_t memory_bytes(int ranks);

  // `memory` is zeroed, 128-byte aligned, memory_bytes(ranks) long and shared by all ranks.
  ShmLog(std::byte* memory, int ranks, Rank self);

  // Appends a frame of this rank. Returns false if the ring is full: the caller reads more frames,
  // in case it is the slowest reader itself, and tries again. Ranks may call it concurrently, but
  // only one thread of a rank at a time.
  bool try_append(std::span<const std::byte> frame) { return try_append(frame, self_, true); }
  // Appends a frame in the name of rank `from`. If `ordered` is false, the frame is on its way to
  // host 0 and gets its place in the order when it returns from there.
  bool try_append(std::span<const std::byte> frame, Rank from, bool ordered);

  struct Entry {
    Rank from = kNoRank;
    bool ordered = true;
    std::span<const std::byte> frame;  // valid until the next call of next()
  };
  // Returns the next frame, or nullopt if it is not completely written yet. One thread of a rank at
  // a time.
  std::optional<Entry> next();
  // Returns true if the next frame has begun to appear.
  bool readable() const { return cell(read_).stamp.load(std::memory_order_acquire) == read_ + 1; }
  // Returns true if a writer has taken a place that this rank has not read. The frame there may not
  // be written yet; it hides the frames behind it.
  bool unread() const { return tail_->value.load(std::memory_order_acquire) != read_; }

  // Ends this rank's reading: writers no longer wait for it.
  void stop_reading();

  // Returns true if `rank` has not yet read everything that this rank has read.
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
  std::uint64_t read_ = 0;            // next cell that this rank reads
  std::uint64_t known_slowest_ = 0;   // a lower bound of slowest_reader()
  std::vector<std::byte> assembled_;  // a frame of several cells
};

}  // namespace ciranda
