// What could break: a peer that shrinks memory under us (SIGBUS), or lies about its size.
#include "core/transport/local/memory_segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace ciranda {
namespace {

TEST(MemorySegment, IsZeroedAndSharedThroughItsDescriptor) {
  auto [segment, fd] = MemorySegment::create(10'000).value();
  EXPECT_EQ(segment.bytes() % 4096, 0u);
  EXPECT_GE(segment.bytes(), 10'000u);
  EXPECT_EQ(segment.data()[9'999], std::byte{0});
  auto other = MemorySegment::open(std::move(fd), segment.bytes());
  ASSERT_TRUE(other.ok());
  EXPECT_NE(other.value().data(), segment.data());
  segment.data()[77] = std::byte{42};
  EXPECT_EQ(other.value().data()[77], std::byte{42});
}

TEST(MemorySegment, IsUsableWhereItIsNotReadyYet) {
  for (const std::size_t ready : {0u, 4096u, 8192u}) {
    auto [segment, fd] = MemorySegment::create(8192, ready).value();
    auto other = MemorySegment::open(std::move(fd), segment.bytes(), ready);
    ASSERT_TRUE(other.ok());
    for (const std::size_t at : {0u, 8191u}) {
      segment.data()[at] = std::byte{42};
      EXPECT_EQ(other.value().data()[at], std::byte{42});
    }
  }
}

TEST(MemorySegment, CannotBeResizedByAnybody) {
  const Fd fd = MemorySegment::create(8192).value().fd;
  EXPECT_NE(::ftruncate(fd.get(), 0), 0);
  EXPECT_NE(::ftruncate(fd.get(), 1 << 20), 0);
}

TEST(MemorySegment, AWrongSizeIsRefused) {
  auto other = MemorySegment::open(MemorySegment::create(8192).value().fd, 4096);
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, ErrorCode::kMalformed);
}

TEST(MemorySegment, AWholeOneHoldsAtLeastWhatWasAnnounced) {
  const Fd fd = MemorySegment::create(8192).value().fd;
  EXPECT_EQ(MemorySegment::open_whole(fd, 1).value().bytes(), 8192u);
  EXPECT_EQ(MemorySegment::open_whole(fd, 8192).value().bytes(), 8192u);
  EXPECT_EQ(MemorySegment::open_whole(fd, 8193).error().code, ErrorCode::kMalformed);
}

TEST(MemorySegment, AnUnsealedDescriptorIsRefused) {
  Fd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(fd.get(), 4096), 0);
  EXPECT_FALSE(MemorySegment::open_whole(fd, 1).ok());
  EXPECT_FALSE(MemorySegment::open(std::move(fd), 4096).ok());
}

TEST(MemorySegment, ReservingTheImpossibleIsAnErrorNotACrash) {
  auto segment = MemorySegment::create(std::size_t{1} << 60);
  ASSERT_FALSE(segment.ok());
  EXPECT_EQ(segment.error().code, ErrorCode::kSystem);
  EXPECT_NE(segment.error().text.find("bytes"), std::string::npos);
}

}  // namespace
}  // namespace ciranda
