// What could break: a reference outside a segment, memory that is never reused, or is while
// somebody still holds it.
#include "core/engine/run/segment_table.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <set>

namespace ciranda {
namespace {

// Two ranks of a host, each with mappings of its own as two processes have them.
struct TwoRanks {
  std::vector<LocalMesh> meshes = make_loopback(2).value();
  SegmentTable owner{meshes[0]};
  std::optional<SegmentTable> peer{std::in_place, meshes[1]};

  // The peer takes in what the owner has announced.
  void hear() {
    while (auto announced = receive_message(meshes[1].peers[0].socket.get()).value()) {
      auto segment = MemorySegment::open(std::move(announced->fd), announced->message.bytes);
      ASSERT_TRUE(peer->add(0, announced->message.segment, std::move(segment).value()).ok());
    }
  }
};

TEST(SegmentTable, ReusesMemoryOnceItsLeaseIsGone) {
  auto meshes = make_loopback(1).value();
  SegmentTable table(meshes[0]);
  std::byte* first = nullptr;
  {
    auto buffer = table.allocate(100'000);
    first = buffer.value().data;
    EXPECT_NE(table.allocate(100'000).value().data, first);
  }
  EXPECT_EQ(table.allocate(90'000).value().ref.segment, 1u);  // the last one given back
  EXPECT_EQ(table.allocate(100'000).value().data, first);
}

TEST(SegmentTable, MemoryThatAPeerHoldsIsNotLentAgain) {
  TwoRanks ranks;
  auto buffer = ranks.owner.allocate(100'000).value();
  ranks.hear();
  auto held = ranks.peer->lease(0, buffer.ref);
  const std::byte* const memory = buffer.data;
  const ArenaRef ref = buffer.ref;
  buffer = {};
  auto other = ranks.owner.allocate(100'000).value();
  EXPECT_NE(other.data, memory);
  auto held_too = ranks.peer->lease(0, ref);
  held.reset();
  EXPECT_NE(ranks.owner.allocate(100'000).value().data, memory);
  held_too.reset();
  const auto again = ranks.owner.allocate(100'000).value();
  const auto and_again = ranks.owner.allocate(100'000).value();
  EXPECT_TRUE(again.data == memory || and_again.data == memory) << "nobody holds it any more";
}

TEST(SegmentTable, ALeaseOfAPeerOutlivesItsWorld) {
  TwoRanks ranks;
  auto buffer = ranks.owner.allocate(100'000).value();
  ranks.hear();
  auto held = ranks.peer->lease(0, buffer.ref);
  ranks.peer.reset();
  buffer = {};
  EXPECT_EQ(ranks.owner.allocate(100'000).value().ref.segment, 1u);
  held.reset();
  std::vector<ArenaBuffer> both;
  for (int i = 0; i < 2; ++i) both.push_back(ranks.owner.allocate(100'000).value());
  EXPECT_EQ(both[0].ref.segment + both[1].ref.segment, 1u) << "0 and 1, in any order";
}

TEST(SegmentTable, AForkedChildGivesBackNothing) {
  TwoRanks ranks;
  auto buffer = ranks.owner.allocate(100'000).value();
  ranks.hear();
  auto held = ranks.peer->lease(0, buffer.ref);
  const pid_t child = ::fork();
  if (child == 0) {
    held.reset();
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  buffer = {};
  EXPECT_EQ(ranks.owner.allocate(100'000).value().ref.segment, 1u);
}

TEST(SegmentTable, WhatTheOwnerMapsLikeAPeerIsNotLentAgain) {
  TwoRanks ranks;
  auto buffer = ranks.owner.allocate(100'000).value();
  const auto held = ranks.owner.lease(0, buffer.ref);
  buffer = {};
  EXPECT_EQ(ranks.owner.allocate(100'000).value().ref.segment, 1u);
}

TEST(SegmentTable, TheCountOfLeasesIsNoPartOfTheMemory) {
  TwoRanks ranks;
  const auto buffer = ranks.owner.allocate(100'000).value();
  EXPECT_GE(buffer.bytes, 100'000u);
  ranks.hear();
  const auto held = ranks.peer->lease(0, buffer.ref);
  for (std::size_t i = 0; i < buffer.bytes; ++i) ASSERT_EQ(buffer.data[i], std::byte{0}) << i;
  EXPECT_FALSE(ranks.peer->resolve(0, buffer.ref, buffer.bytes + 1).ok());
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// Ten thousand buckets: a process may map some 65,000 pieces, and usually open 1,024 files.
TEST(SegmentTable, ThousandsOfBlocksShareFewSegmentsAndKeepNoDescriptor) {
  TwoRanks ranks;
  const std::size_t before = open_descriptors();
  std::vector<ArenaBuffer> blocks;
  std::set<std::uint32_t> segments;
  for (const std::size_t size : {100u, 70'000u, 4'096u}) {
    for (int i = 0; i < 3'000; ++i) {
      blocks.push_back(ranks.owner.allocate(size).value());
      segments.insert(blocks.back().ref.segment);
    }
  }
  EXPECT_LT(segments.size(), 100u) << "all wait in the peer's socket";
  ranks.hear();
  EXPECT_EQ(open_descriptors(), before);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks[i].data[0] = static_cast<std::byte>(i);
    blocks[i].data[blocks[i].bytes - 1] = static_cast<std::byte>(i);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::byte* seen = ranks.peer->resolve(0, blocks[i].ref, blocks[i].bytes).value();
    EXPECT_EQ(seen[0], static_cast<std::byte>(i));
    EXPECT_EQ(seen[blocks[i].bytes - 1], static_cast<std::byte>(i));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blocks[i].data) % 64, 0u);
  }
}

TEST(SegmentTable, ABlockThatAPeerHoldsIsNotLentAgainAndItsNeighboursAre) {
  TwoRanks ranks;
  std::vector<ArenaBuffer> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(ranks.owner.allocate(1000).value());
  ranks.hear();
  const ArenaRef ref = blocks[1].ref;
  const auto held = ranks.peer->lease(0, ref);
  blocks.clear();
  for (int i = 0; i < 10; ++i) {
    blocks.push_back(ranks.owner.allocate(1000).value());
    EXPECT_FALSE(blocks.back().ref == ref);
  }
  EXPECT_EQ(blocks.back().ref.segment, ref.segment);
}

TEST(SegmentTable, AskingForEverythingIsAnError) {
  TwoRanks ranks;
  EXPECT_FALSE(ranks.owner.allocate(SIZE_MAX).ok());
  EXPECT_FALSE(ranks.owner.allocate(SIZE_MAX - 63).ok());
}

TEST(SegmentTable, AReferenceOutsideASegmentIsRefused) {
  auto meshes = make_loopback(1).value();
  SegmentTable table(meshes[0]);
  const auto [ref, data, bytes, lease] = table.allocate(4096).value();
  const std::uint64_t segment_bytes = 266'240;  // 64 such blocks, in whole pages
  EXPECT_EQ(table.resolve(0, ref, bytes).value(), data);
  ASSERT_EQ(ref.segment, 0u);
  EXPECT_TRUE(table.resolve(0, ref, segment_bytes - ref.offset).ok());
  EXPECT_FALSE(table.resolve(0, ref, segment_bytes - ref.offset + 1).ok());
  EXPECT_FALSE(table.resolve(0, {.segment = 0, .offset = 0}, 1).ok()) << "a count of leases";
  EXPECT_FALSE(table.resolve(0, {.segment = 0, .offset = 65}, 1).ok());
  EXPECT_FALSE(table.resolve(0, {.segment = 0, .offset = segment_bytes + 64}, 0).ok());
  EXPECT_FALSE(table.resolve(0, {.segment = 0, .offset = UINT64_MAX - 63}, 128).ok());
  EXPECT_EQ(table.resolve(0, {.segment = 9, .offset = 0}, 1).value(), nullptr);
}

TEST(SegmentTable, AnnouncementsOutOfOrderAreRefused) {
  auto meshes = make_loopback(2).value();
  SegmentTable table(meshes[0]);
  EXPECT_FALSE(table.add(1, 3, MemorySegment::create(1).value().segment).ok());
  EXPECT_TRUE(table.add(1, 0, MemorySegment::create(1).value().segment).ok());
}

}  // namespace
}  // namespace ciranda
