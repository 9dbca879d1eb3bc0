#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/result.h"
#include "core/transport/local/doorbell.h"
#include "core/transport/local/group_region.h"
#include "core/transport/local/shm_log.h"
#include "core/wire/types.h"

namespace ciranda {

// What one rank tells the others of its host, beside the counters of its groups (GroupRegion).
struct alignas(128) RankFlags {
  // Operations between hosts that the lanes of this rank are through with.
  std::atomic<std::uint64_t> crossed;
  // The latest one whose private data lies in this rank's stage, and where this is.
  alignas(64) std::atomic<std::uint64_t> staged;
  std::atomic<std::uint64_t> stage_offset;
  std::atomic<std::uint32_t> stage_segment;
  Doorbell waiters;  // threads of this rank inside a blocking call
  // Threads that drive this rank's engine right now; with none, only its background thread can.
  alignas(64) std::atomic<std::uint32_t> drivers;
  // The background thread sleeps and wants to hear of news (overlap with compute).
  std::atomic<std::uint32_t> background_listens;
  std::atomic<std::uint32_t> asked_where;  // how often others, who wait for it, asked where it is
};

// Why the World of this host failed: written once, by the first rank that knows.
struct FailureRecord {
  static constexpr std::uint32_t kNone = 0, kWriting = 1, kWritten = 2;
  std::atomic<std::uint32_t> state;
  ErrorCode code;
  std::int32_t rank;  // at fault
  std::uint32_t text_bytes;
  char text[kErrorTextBytesMax];
};

// The memory all ranks of a host share for control and for the World's own group, seen by one rank.
// Every rank maps the same bytes; the layout is a pure function of the number of ranks.
class ControlBlock {
 public:
  static std::size_t memory_bytes(int ranks);
  ControlBlock(std::byte* memory, int ranks);

  std::byte* log_memory() const { return memory_ + log_offset_; }
  RankFlags& flags(Rank rank) const { return flags_[rank]; }
  GroupRegion world() const { return {memory_ + world_offset_, ranks_}; }

  // Of this World on this host: the same for all its ranks, and another one the next time.
  std::uint64_t mark() const;

  // Records `error` as the reason unless another rank was faster; gives the reason that holds.
  Error fail(const Error& error) const;
  // The reason, once one is recorded.
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
};

}  // namespace ciranda
