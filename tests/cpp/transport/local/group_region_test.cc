// What could break: parts of the shared layout that overlap.
#include "core/transport/local/group_region.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace ciranda {
namespace {

TEST(GroupRegion, PartsDoNotOverlap) {
  for (const int members : {1, 2, 3, 8, 256}) {
    auto* base = reinterpret_cast<std::byte*>(std::size_t{1} << 30);
    const GroupRegion region(base, members);
    std::vector<std::pair<std::size_t, std::size_t>> parts;
    const auto add = [&](const void* begin, std::size_t size) {
      const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(begin) - base);
      parts.emplace_back(offset, offset + size);
    };
    for (int member = 0; member < members; ++member) {
      add(&region.flags(member), sizeof(GroupFlags));
      for (std::uint64_t round = 0; round < kStagingSlots; ++round) {
        add(region.slot(member, round), kStagingSlotBytes);
      }
    }
    for (std::uint64_t i = 0; i < kClaimBoards; ++i) {
      const ClaimBoard board = region.board(i);
      add(board.claimed, static_cast<std::size_t>(members) * sizeof(ClaimWord));
      add(board.done, sizeof(ClaimWord));
    }
    std::sort(parts.begin(), parts.end());
    EXPECT_EQ(parts.front().first, 0u);
    for (std::size_t i = 1; i < parts.size(); ++i) {
      ASSERT_LE(parts[i - 1].second, parts[i].first) << members;
    }
    EXPECT_EQ(parts.back().second, GroupRegion::memory_bytes(members));
  }
}

TEST(GroupRegion, CountersComeBeforeTheSlots) {
  auto* base = reinterpret_cast<std::byte*>(std::size_t{1} << 30);
  const GroupRegion region(base, 3);
  EXPECT_EQ(region.slot(0, 0), base + GroupRegion::counter_bytes(3));
}

}  // namespace
}  // namespace ciranda
