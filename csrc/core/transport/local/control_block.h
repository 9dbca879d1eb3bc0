#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/assert.h"
#include "core/base/result.h"
#include "core/transport/local/doorbell.h"
#include "core/transport/local/group_region.h"
#include "core/transport/local/shm_log.h"
#include "core/wire/types.h"

namespace ciranda {

// Progress and state of one rank, for the other ranks of its host. GroupRegion has the counters of
// its groups.
struct alignas(128) RankFlags {
  // The latest operation between hosts that all channels of this rank have completed.
  std::atomic<std::uint64_t> crossed;
  // The latest operation between hosts for which this rank's stage holds the private data, and
  // where the stage lies.
  alignas(64) std::atomic<std::uint64_t> staged;
  std::atomic<std::uint64_t> stage_offset;
  std::atomic<std::uint32_t> stage_segment;
  Doorbell waiters;  // threads of this rank inside a blocking call
  // Threads that drive this rank's engine now. If it is 0, only the background thread can drive.
  alignas(64) std::atomic<std::uint32_t> drivers;
  // Not 0: the background thread sleeps and wants to be woken by any change (overlap with compute).
  std::atomic<std::uint32_t> background_listens;
  std::atomic<std::uint32_t> asked_where;  // how often waiting ranks asked where it is
};

// Tells whether a rank's process lives, see LifeWatch. Only elastic jobs use it.
struct alignas(64) LifeMark {
  std::atomic<std::uint32_t> word;  // a robust futex
};

// Why the World of this host failed. Written once, by the first rank that reports a failure.
struct FailureRecord {
  static constexpr std::uint32_t kNone = 0, kWriting = 1, kWritten = 2;
  std::atomic<std::uint32_t> state;
  ErrorCode code;
  std::int32_t rank;  // at fault
  std::uint32_t text_bytes;
  char text[kErrorTextBytesMax];
};

// One rank's view of the memory that all ranks of a host share for control and for the World's own
// group. Every rank maps the same bytes; the layout is a pure function of the number of ranks.
class ControlBlock {
 public:
  static std::size_t memory_bytes(int ranks);
  // All but the staging slots, which many Worlds never use: mapping those of all ranks would take
  // longer than all else at the start.
  static std::size_t ready_bytes(int ranks);
  ControlBlock(std::byte* memory, int ranks);

  std::byte* log_memory() const { return memory_ + log_offset_; }
  RankFlags& flags(Rank rank) const {
    CIRANDA_ASSERT(rank >= 0 && rank < ranks_);
    return flags_[rank];
  }
  LifeMark& life_mark(Rank rank) const {
    CIRANDA_ASSERT(rank >= 0 && rank < ranks_);
    return life_marks_[rank];
  }
  GroupRegion world() const { return {memory_ + world_offset_, ranks_}; }

  // Returns a number that identifies this World on this host: the same on all its ranks, and
  // different for the next World.
  std::uint64_t mark() const;

  // Records `error` as the reason of the failure unless another rank has recorded one. Returns the
  // recorded reason.
  Error fail(const Error& error) const;
  // Returns true if a reason is recorded; failure() may be called only then.
  bool failed() const;
  Error failure() const;

 private:
  const int ranks_;
  std::byte* const memory_;
  std::size_t log_offset_ = 0;
  std::size_t world_offset_ = 0;
  std::atomic<std::uint64_t>* mark_ = nullptr;
  FailureRecord* failure_ = nullptr;
  RankFlags* flags_ = nullptr;
  LifeMark* life_marks_ = nullptr;
};

}  // namespace ciranda
