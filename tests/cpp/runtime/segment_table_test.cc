// What could break: a reference outside a segment, memory that is never reused.
#include "core/runtime/segment_table.h"

#include <gtest/gtest.h>

namespace ciranda {
namespace {

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

TEST(SegmentTable, AReferenceOutsideASegmentIsRefused) {
  auto meshes = make_loopback(1).value();
  SegmentTable table(meshes[0]);
  const auto buffer = table.allocate(4096).value();
  EXPECT_TRUE(table.resolve(0, {.segment = 0, .offset = 0}, 4096).ok());
  EXPECT_FALSE(table.resolve(0, {.segment = 0, .offset = 1}, 4096).ok());
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
