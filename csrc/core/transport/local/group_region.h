#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/wire/types.h"

namespace ciranda {

// The counters by which one member tells the others how far it is. They only grow. A staging
// *round* moves one slot's worth of data of one operation; rounds are numbered through over all
// operations of the group, which every member runs in the same order.
struct alignas(128) GroupFlags {
  std::atomic<std::uint64_t> copied_in;               // rounds whose input lies in its slot
  alignas(64) std::atomic<std::uint64_t> reduced;     // rounds whose own slice is reduced
  alignas(64) std::atomic<std::uint64_t> copied_out;  // rounds it needs no slot of any more
};

// Chunks of an operation whose data lies in the arena are claimed by whichever member has time,
// each one's share first by itself: what it wrote in the last step is still near. A word holds
// (operation << kChunkBits | chunks), so a board needs no reset: a word of an older operation
// counts as zero chunks, one of a newer operation means that this one is complete.
struct alignas(64) ClaimWord {
  static constexpr int kChunkBits = 24;
  std::atomic<std::uint64_t> value;
};
struct ClaimBoard {
  ClaimWord* claimed;  // by share, one for each member
  ClaimWord* done;     // of all shares
};
inline constexpr std::size_t kClaimBoards = 256;  // arena operations that may run at a time

// Staging slots of one member. 4 slots: one filled, one reduced, one drained, one of slack. A slot
// and its peer's counterpart fit a 1 MiB L2 cache together.
inline constexpr std::size_t kStagingSlots = 4;
inline constexpr std::size_t kStagingSlotBytes = std::size_t{256} * 1024;

// The memory through which the members of a group on one host reduce, seen by one of them. All map
// the same bytes; the layout is a pure function of their number. Members are named by their index
// among those of the host.
class GroupRegion {
 public:
  static constexpr std::size_t kAlignment = 128;
  static std::size_t memory_bytes(int members);
  // `memory` is aligned to kAlignment; its first `counter_bytes(members)` bytes are zero when the
  // first member begins.
  GroupRegion(std::byte* memory, int members);
  // Whole pages, so that the slots of a region at a page's start begin on one.
  static std::size_t counter_bytes(int members);

  GroupFlags& flags(int member) const { return flags_[member]; }
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
