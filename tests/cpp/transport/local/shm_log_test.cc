// What could break: two readers that see different orders, a frame torn or lost when the ring
// wraps, a writer that overwrites what somebody has not read.
#include "core/transport/local/shm_log.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "core/transport/local/memory_segment.h"

namespace ciranda {
namespace {

struct Logs {
  explicit Logs(int ranks)
      : memory(MemorySegment::create(ShmLog::memory_bytes(ranks)).value().segment) {
    for (Rank rank = 0; rank < ranks; ++rank) logs.emplace_back(memory.data(), ranks, rank);
  }
  MemorySegment memory;
  std::vector<ShmLog> logs;
};

std::vector<std::byte> frame_of(Rank from, std::uint32_t number, std::size_t bytes) {
  std::vector<std::byte> frame(std::max<std::size_t>(bytes, 8), static_cast<std::byte>(number));
  std::memcpy(frame.data(), &from, sizeof from);
  std::memcpy(frame.data() + 4, &number, sizeof number);
  return frame;
}

TEST(ShmLog, GivesFramesOfAnySizeBack) {
  Logs logs(1);
  for (const std::size_t bytes : {0ul, 1ul, 48ul, 49ul, 1000ul, kFrameBytesMax}) {
    const std::vector<std::byte> frame(bytes, std::byte{7});
    ASSERT_TRUE(logs.logs[0].try_append(frame));
    const auto entry = logs.logs[0].next();
    ASSERT_TRUE(entry.has_value());
    EXPECT_EQ(entry->from, 0);
    EXPECT_EQ(std::vector<std::byte>(entry->frame.begin(), entry->frame.end()), frame);
  }
  EXPECT_FALSE(logs.logs[0].next().has_value());
}

TEST(ShmLog, AFrameIsUnreadFromWhenItsPlaceIsTaken) {
  Logs logs(2);
  EXPECT_FALSE(logs.logs[1].unread());
  ASSERT_TRUE(logs.logs[0].try_append(frame_of(0, 1, 8)));
  EXPECT_TRUE(logs.logs[1].unread() && logs.logs[1].readable());
  ASSERT_TRUE(logs.logs[1].next().has_value());
  EXPECT_FALSE(logs.logs[1].unread());
  // A writer has taken a place, and then another: what the second has written is hidden.
  ++*reinterpret_cast<std::uint64_t*>(logs.memory.data());
  ASSERT_TRUE(logs.logs[0].try_append(frame_of(0, 2, 8)));
  EXPECT_TRUE(logs.logs[1].unread());
  EXPECT_FALSE(logs.logs[1].readable() || logs.logs[1].next().has_value());
}

TEST(ShmLog, RefusesToOverwriteWhatTheSlowestReaderHasNotRead) {
  Logs logs(2);
  const std::vector<std::byte> frame(10'000, std::byte{1});
  int accepted = 0;
  while (logs.logs[0].try_append(frame)) {
    ++accepted;
    ASSERT_TRUE(logs.logs[0].next().has_value());
    ASSERT_LT(accepted, 1000);
  }
  EXPECT_TRUE(logs.logs[0].lags_behind(1));
  for (int i = 0; i < accepted; ++i) ASSERT_TRUE(logs.logs[1].next().has_value());
  EXPECT_FALSE(logs.logs[1].next().has_value());  // publishes its place
  EXPECT_TRUE(logs.logs[0].try_append(frame));
}

TEST(ShmLog, DoesNotWaitForAReaderThatRetired) {
  Logs logs(2);
  logs.logs[1].stop_reading();
  const std::vector<std::byte> frame(10'000, std::byte{1});
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(logs.logs[0].try_append(frame));
    ASSERT_TRUE(logs.logs[0].next().has_value());
  }
}

TEST(ShmLog, EveryReaderSeesTheSameOrderOfEveryWriter) {
  constexpr int kRanks = 4;
  constexpr std::uint32_t kFrames = 5000;
  Logs logs(kRanks);
  std::vector<std::vector<std::pair<Rank, std::uint32_t>>> seen(kRanks);
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      ShmLog& log = logs.logs[static_cast<std::size_t>(rank)];
      auto& order = seen[static_cast<std::size_t>(rank)];
      std::mt19937 random(static_cast<unsigned>(rank));
      std::uint32_t sent = 0;
      while (order.size() < kRanks * kFrames) {
        if (sent < kFrames && log.try_append(frame_of(rank, sent, random() % 700))) ++sent;
        bool read = false;
        while (const auto entry = log.next()) {
          read = true;
          Rank from = kNoRank;
          std::uint32_t number = 0;
          std::memcpy(&from, entry->frame.data(), sizeof from);
          std::memcpy(&number, entry->frame.data() + 4, sizeof number);
          ASSERT_EQ(from, entry->from);
          if (entry->frame.size() > 8) {
            ASSERT_EQ(entry->frame.back(), static_cast<std::byte>(number));
          }
          order.emplace_back(from, number);
        }
        if (!read) std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::uint32_t> next(kRanks, 0);
  for (const auto& [from, number] : seen[0]) {
    EXPECT_EQ(number, next[static_cast<std::size_t>(from)]++);
  }
  for (int rank = 1; rank < kRanks; ++rank)
    EXPECT_EQ(seen[static_cast<std::size_t>(rank)], seen[0]);
}

}  // namespace
}  // namespace ciranda
