#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/result.h"
#include "core/transport/doorbell.h"
#include "core/transport/shm_log.h"
#include "core/wire/types.h"

namespace ciranda {

// The flags by which one rank tells the others how far it is. Counters only grow. A staging
// *round* moves one slot's worth of data of one operation; rounds are numbered through over all
// operations, which every rank runs in the same order.
struct alignas(128) RankFlags {
  std::atomic<std::uint64_t> copied_in;               // rounds whose input lies in this rank's slot
  alignas(64) std::atomic<std::uint64_t> reduced;     // rounds whose own slice is reduced
  alignas(64) std::atomic<std::uint64_t> copied_out;  // rounds this rank needs no slot of any more
  // Operations between hosts that the lanes of this rank are through with.
  alignas(64) std::atomic<std::uint64_t> crossed;
  // The latest one whose private data lies in this rank's stage, and where this is.
  alignas(64) std::atomic<std::uint64_t> staged;
  std::atomic<std::uint64_t> stage_offset;
  std::atomic<std::uint32_t> stage_segment;
  Doorbell waiters;  // threads of this rank inside a blocking call
  // Threads that drive this rank's engine right now; with none, only its background thread can.
  alignas(64) std::atomic<std::uint32_t> drivers;
  // The background thread sleeps and wants to hear of news (overlap with compute).
  std::atomic<std::uint32_t> background_listens;
};

// Chunks of an operation whose data lies in the arena are claimed by whichever rank has time, each
// rank's share first by itself: what it wrote in the last step is still near. A word holds
// (operation << kChunkBits | chunks), so a board needs no reset: a word of an older operation
// counts as zero chunks, one of a newer operation means that this one is complete.
struct alignas(64) ClaimWord {
  static constexpr int kChunkBits = 24;
  std::atomic<std::uint64_t> value;
};
struct ClaimBoard {
  ClaimWord* claimed;  // by share, one for each rank
  ClaimWord* done;     // of all shares
};
inline constexpr std::size_t kClaimBoards = 256;  // arena operations that may run at a time

// Why the World of this host failed: written once, by the first rank that knows.
struct FailureRecord {
  static constexpr std::uint32_t kNone = 0, kWriting = 1, kWritten = 2;
  std::atomic<std::uint32_t> state;
  ErrorCode code;
  std::int32_t rank;  // at fault
  std::uint32_t text_bytes;
  char text[kErrorTextBytesMax];
};

// Staging slots of one rank. 4 slots: one filled, one reduced, one drained, one of slack. A slot
// and its peer's counterpart fit a 1 MiB L2 cache together.
inline constexpr std::size_t kStagingSlots = 4;
inline constexpr std::size_t kStagingSlotBytes = std::size_t{256} * 1024;

// The memory all ranks of a host share for control and staging, seen by one rank. Every rank maps
// the same bytes; the layout is a pure function of the number of ranks.
class ControlBlock {
 public:
  static std::size_t memory_bytes(int ranks);
  ControlBlock(std::byte* memory, int ranks);

  std::byte* log_memory() const { return memory_ + log_offset_; }
  RankFlags& flags(Rank rank) const { return flags_[rank]; }
  ClaimBoard board(std::uint64_t operation) const;
  std::byte* slot(Rank rank, std::uint64_t round) const;

  // Records `error` as the reason unless another rank was faster; gives the reason that holds.
  Error fail(const Error& error) const;
  // The reason, once one is recorded.
  bool failed() const;
  Error failure() const;

 private:
  const int ranks_;
  std::byte* const memory_;
  std::size_t log_offset_ = 0;
  std::size_t staging_offset_ = 0;
  FailureRecord* failure_ = nullptr;
  RankFlags* flags_ = nullptr;
  ClaimWord* boards_ = nullptr;
};

}  // namespace ciranda
