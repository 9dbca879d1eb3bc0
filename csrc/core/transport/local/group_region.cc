#include "core/transport/local/group_region.h"

#include "core/base/assert.h"

namespace ciranda {
namespace {

constexpr std::size_t kRegionPageBytes = 4096;

std::size_t flag_bytes(int members) {
  return static_cast<std::size_t>(members) * sizeof(GroupFlags);
}

}  // namespace

static_assert(alignof(GroupFlags) <= GroupRegion::kAlignment &&
              alignof(ClaimWord) <= GroupRegion::kAlignment);

std::size_t GroupRegion::counter_bytes(int members) {
  const std::size_t bytes = flag_bytes(members) + kClaimBoards *
                                                      (static_cast<std::size_t>(members) + 1) *
                                                      sizeof(ClaimWord);
  return (bytes + kRegionPageBytes - 1) / kRegionPageBytes * kRegionPageBytes;
}

std::size_t GroupRegion::memory_bytes(int members) {
  return counter_bytes(members) +
         static_cast<std::size_t>(members) * kStagingSlots * kStagingSlotBytes;
}

GroupRegion::GroupRegion(std::byte* memory, int members)
    : members_(members),
      flags_(reinterpret_cast<GroupFlags*>(memory)),
      boards_(reinterpret_cast<ClaimWord*>(memory + flag_bytes(members))),
      slots_(memory + counter_bytes(members)) {
  CIRANDA_ASSERT(members >= 1 && members <= kLocalRanksMax);
  CIRANDA_ASSERT(reinterpret_cast<std::uintptr_t>(memory) % kAlignment == 0);
}

ClaimBoard GroupRegion::board(std::uint64_t operation) const {
  const auto members = static_cast<std::size_t>(members_);
  ClaimWord* words = boards_ + operation % kClaimBoards * (members + 1);
  return {.claimed = words, .done = words + members};
}

std::byte* GroupRegion::slot(int member, std::uint64_t round) const {
  CIRANDA_ASSERT(member >= 0 && member < members_);
  const std::size_t index =
      static_cast<std::size_t>(member) * kStagingSlots + round % kStagingSlots;
  return slots_ + index * kStagingSlotBytes;
}

}  // namespace ciranda
