// What could break: a reference outside a segment, memory that is never reused, or is while
// somebody still holds it.
#include "core/runtime/segment_table.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

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
  auto held = ranks.peer->lease(0, buffer.ref.segment);
  const std::byte* const memory = buffer.data;
  buffer = {};
  auto other = ranks.owner.allocate(100'000).value();
  EXPECT_NE(other.data, memory);
  auto held_too = ranks.peer->lease(0, 0);
  held.reset();
  EXPECT_NE(ranks.owner.allocate(100'000).value().data, memory);
  held_too.reset();
  const auto again = ranks.owner.allocate(100'000).value();
  const auto and_again = ranks.owner.allocate(100'000).value();
  EXPECT_TRUE(again.data == memory || and_again.data == memory) << "nobody holds it any more";
}

TEST(SegmentTable, ALeaseOfAPeerOutlivesItsWorld) {
  TwoRanks ranks;
  auto buffer = ranks.owner.allocate(4096).value();
  ranks.hear();
  auto held = ranks.peer->lease(0, buffer.ref.segment);
  ranks.peer.reset();
  buffer = {};
  EXPECT_EQ(ranks.owner.allocate(4096).value().ref.segment, 1u);
  held.reset();
  std::vector<ArenaBuffer> both;
  for (int i = 0; i < 2; ++i) both.push_back(ranks.owner.allocate(4096).value());
  EXPECT_EQ(both[0].ref.segment + both[1].ref.segment, 1u) << "0 and 1, in any order";
}

TEST(SegmentTable, AForkedChildGivesBackNothing) {
  TwoRanks ranks;
  auto buffer = ranks.owner.allocate(4096).value();
  ranks.hear();
  auto held = ranks.peer->lease(0, buffer.ref.segment);
  const pid_t child = ::fork();
  if (child == 0) {
    held.reset();
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  buffer = {};
  EXPECT_EQ(ranks.owner.allocate(4096).value().ref.segment, 1u);
}

TEST(SegmentTable, WhatTheOwnerMapsLikeAPeerIsNotLentAgain) {
  TwoRanks ranks;
  auto buffer = ranks.owner.allocate(4096).value();
  const auto held = ranks.owner.lease(0, buffer.ref.segment);
  buffer = {};
  EXPECT_EQ(ranks.owner.allocate(4096).value().ref.segment, 1u);
}

TEST(SegmentTable, TheCountOfLeasesIsNoPartOfTheMemory) {
  TwoRanks ranks;
  const auto buffer = ranks.owner.allocate(4096).value();
  EXPECT_GE(buffer.bytes, 4096u);
  ranks.hear();
  const auto held = ranks.peer->lease(0, 0);
  for (std::size_t i = 0; i < buffer.bytes; ++i) ASSERT_EQ(buffer.data[i], std::byte{0}) << i;
  EXPECT_FALSE(ranks.peer->resolve(0, buffer.ref, buffer.bytes + 1).ok());
}

TEST(SegmentTable, ASegmentWithoutRoomForItsCountIsRefused) {
  TwoRanks ranks;
  for (const off_t bytes : {32, 64, 4095}) {
    Fd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::ftruncate(fd.get(), bytes), 0);
    ASSERT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    auto segment = MemorySegment::open(std::move(fd), static_cast<std::size_t>(bytes));
    ASSERT_TRUE(segment.ok());
    const Status added = ranks.owner.add(1, 0, std::move(segment).value());
    ASSERT_FALSE(added.ok()) << bytes;
    EXPECT_EQ(added.error().code, ErrorCode::kMalformed);
  }
}

TEST(SegmentTable, AskingForEverythingIsAnError) {
  TwoRanks ranks;
  EXPECT_FALSE(ranks.owner.allocate(SIZE_MAX).ok());
  EXPECT_FALSE(ranks.owner.allocate(SIZE_MAX - 63).ok());
}

TEST(SegmentTable, AReferenceOutsideASegmentIsRefused) {
  auto meshes = make_loopback(1).value();
  SegmentTable table(meshes[0]);
  const auto buffer = table.allocate(4096).value();
  EXPECT_TRUE(table.resolve(0, {.segment = 0, .offset = 0}, buffer.bytes).ok());
  EXPECT_FALSE(table.resolve(0, {.segment = 0, .offset = 1}, buffer.bytes).ok());
  EXPECT_FALSE(table.resolve(0, {.segment = 0, .offset = UINT64_MAX}, 2).ok());
  EXPECT_EQ(table.resolve(0, {.segment = 9, .offset = 0}, 1).value(), nullptr);
}

TEST(SegmentTable, AnnouncementsOutOfOrderAreRefused) {
  auto meshes = make_loopback(2).value();
  SegmentTable table(meshes[0]);
  EXPECT_FALSE(table.add(1, 3, MemorySegment::create(1).value()).ok());
  EXPECT_TRUE(table.add(1, 0, MemorySegment::create(1).value()).ok());
}

}  // namespace
}  // namespace ciranda
