#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/base/assert.h"
#include "core/wire/types.h"

namespace ciranda {

// The counters with which one member tells the other members its progress. They only grow. A
// staging *round* moves one slot's worth of data of one operation. Rounds are numbered
// consecutively over all operations of the group, which every member runs in the same order.
struct alignas(128) GroupFlags {
  std::atomic<std::uint64_t> copied_in;               // rounds with input in its slot
  alignas(64) std::atomic<std::uint64_t> reduced;     // rounds with its own slice reduced
  alignas(64) std::atomic<std::uint64_t> copied_out;  // rounds for which it needs no slot any more
};

// Members claim the chunks of an operation on arena data when they have time. Each member starts
// with its own share, because its cache still holds what it wrote in the last step. A word holds
// (operation << kChunkBits | chunks), so a board needs no reset: a word of an older operation
// counts as zero chunks, and a word of a newer operation means that this one is complete.
struct alignas(64) ClaimWord {
  static constexpr int kChunkBits = 24;
  std::atomic<std::uint64_t> value;
};
struct ClaimBoard {
  ClaimWord* claimed;  // chunks claimed, by share; each member has one share
  ClaimWord* done;     // chunks done, of all shares together
};
inline constexpr std::size_t kClaimBoards = 256;  // arena operations that may run at a time

// Staging slots of one member. One slot is filled, one reduced, one drained, and one is slack. A
// slot and a peer's slot fit into a 1 MiB L2 cache together.
inline constexpr std::size_t kStagingSlots = 4;
inline constexpr std::size_t kStagingSlotBytes = std::size_t{256} * 1024;

// One member's view of the memory through which the members of a group on one host reduce. All of
// them map the same bytes; the layout is a pure function of their number. A member's number is its
// index among the members on the host.
class GroupRegion {
 public:
  static constexpr std::size_t kAlignment = 128;
  static std::size_t memory_bytes(int members);
  // `memory` must be aligned to kAlignment. Its first counter_bytes(members) bytes must be zero
  // before the first member uses the region.
  GroupRegion(std::byte* memory, int members);
  // Returns whole pages, so that the slots of a page-aligned region start on a page.
  static std::size_t counter_bytes(int members);

  GroupFlags& flags(int member) const {
    CIRANDA_ASSERT(member >= 0 && member < members_);
    return flags_[member];
  }
  ClaimBoard board(std::uint64_t operation) const;
  std::byte* slot(int member, std::uint64_t round) const;
  int members() const { return members_; }

 private:
  int members_;
  GroupFlags* flags_;
  ClaimWord* boards_;
  std::byte* slots_;
};

}  // namespace ciranda
