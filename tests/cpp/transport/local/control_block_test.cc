// What could break: regions of the shared layout that overlap, two reasons for one failure.
#include "core/transport/local/control_block.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/transport/local/memory_segment.h"

namespace ciranda {
namespace {

TEST(ControlBlock, RegionsDoNotOverlap) {
  for (const int ranks : {1, 2, 3, 8, 256}) {
    const std::size_t bytes = ControlBlock::memory_bytes(ranks);
    std::vector<std::pair<std::size_t, std::size_t>> regions;
    auto* base = reinterpret_cast<std::byte*>(std::size_t{1} << 30);
    const ControlBlock block(base, ranks);
    const auto add = [&](const void* begin, std::size_t size) {
      const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(begin) - base);
      regions.emplace_back(offset, offset + size);
    };
    for (Rank rank = 0; rank < ranks; ++rank) {
      add(&block.flags(rank), sizeof(RankFlags));
      add(&block.life_mark(rank), sizeof(LifeMark));
    }
    add(&block.world().flags(0), GroupRegion::memory_bytes(ranks));
    add(block.log_memory(), ShmLog::memory_bytes(ranks));
    std::sort(regions.begin(), regions.end());
    EXPECT_GE(regions.front().first, sizeof(FailureRecord));
    for (std::size_t i = 1; i < regions.size(); ++i) {
      ASSERT_LE(regions[i - 1].second, regions[i].first) << ranks;
    }
    EXPECT_LE(regions.back().second, bytes);
  }
}

TEST(ControlBlock, AllButTheStagingSlotsIsReady) {
  for (const int ranks : {1, 2, 16}) {
    std::vector<std::byte> bytes(ControlBlock::memory_bytes(ranks) + 4096);
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
    std::byte* const memory = bytes.data() + (4096 - address % 4096);
    const GroupRegion world = ControlBlock(memory, ranks).world();
    EXPECT_EQ(memory + ControlBlock::ready_bytes(ranks), world.slot(0, 0));
  }
}

TEST(ControlBlock, TheFirstReasonOfAFailureHolds) {
  auto memory = MemorySegment::create(ControlBlock::memory_bytes(2)).value().segment;
  const ControlBlock a(memory.data(), 2);
  const ControlBlock b(memory.data(), 2);
  EXPECT_FALSE(a.failed());
  EXPECT_EQ(a.fail({.code = ErrorCode::kRankLost, .text = "first", .rank = 1}).text, "first");
  EXPECT_EQ(b.fail({.code = ErrorCode::kRankLost, .text = "second", .rank = 0}).text, "first");
  EXPECT_TRUE(b.failed());
  EXPECT_EQ(b.failure().rank, 1);
  EXPECT_EQ(b.failure().code, ErrorCode::kRankLost);
}

TEST(ControlBlock, AReasonThatIsTooLongIsCut) {
  auto memory = MemorySegment::create(ControlBlock::memory_bytes(1)).value().segment;
  const ControlBlock block(memory.data(), 1);
  (void)block.fail({.code = ErrorCode::kRankLost, .text = std::string(100'000, 'x'), .rank = 0});
  EXPECT_EQ(block.failure().text.size(), kErrorTextBytesMax);
}

}  // namespace
}  // namespace ciranda
