// What could break: a forked child that writes to what the parent's job computes with, one that
// loses what it wrote, a fork that hangs because another thread maps memory.
#include "core/transport/local/shared_mapping.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "core/transport/local/memory_segment.h"

namespace ciranda {
namespace {

// Whether `body` holds in a forked child.
bool in_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = 0;
  return child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status) &&
         WEXITSTATUS(status) == 0;
}

// The same memory mapped twice, as two processes would.
std::array<MemorySegment, 2> mapped_twice(std::size_t bytes) {
  auto [segment, fd] = MemorySegment::create(bytes).value();
  return {segment, MemorySegment::open(std::move(fd), segment.bytes()).value()};
}

std::size_t mapped_segments() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:") != line.npos;
  return count;
}

TEST(SharedMapping, WhatAForkedChildWritesStaysItsOwn) {
  const auto both = mapped_twice(100'000);
  const MemorySegment& segment = both[0];
  const MemorySegment& of_peer = both[1];
  segment.data()[77] = std::byte{1};
  EXPECT_TRUE(in_child([&] {
    const bool inherited = segment.data()[77] == std::byte{1};
    segment.data()[77] = std::byte{2};
    of_peer.data()[99'999] = std::byte{3};
    return inherited && segment.data()[77] == std::byte{2};
  }));
  for (const MemorySegment& seen : {segment, of_peer}) {
    EXPECT_EQ(seen.data()[77], std::byte{1});
    EXPECT_EQ(seen.data()[99'999], std::byte{0});
  }
}

TEST(SharedMapping, TheParentGoesOnSharingAfterAFork) {
  const auto [segment, of_peer] = mapped_twice(4096);
  EXPECT_TRUE(in_child([] { return true; }));
  segment.data()[0] = std::byte{1};
  EXPECT_EQ(of_peer.data()[0], std::byte{1});
}

TEST(SharedMapping, AChildOfAChildGetsWhatTheChildWrote) {
  const auto segment = MemorySegment::create(4096).value().segment;
  EXPECT_TRUE(in_child([&] {
    segment.data()[0] = std::byte{2};
    const bool right = in_child([&] {
      const bool inherited = segment.data()[0] == std::byte{2};
      segment.data()[0] = std::byte{3};
      return inherited;
    });
    return right && segment.data()[0] == std::byte{2};
  }));
  EXPECT_EQ(segment.data()[0], std::byte{0});
}

TEST(SharedMapping, AChildSharesWhatItMapsItself) {
  EXPECT_TRUE(in_child([] {
    const auto [segment, of_peer] = mapped_twice(4096);
    segment.data()[0] = std::byte{1};
    return of_peer.data()[0] == std::byte{1};
  }));
}

TEST(SharedMapping, NothingStaysMapped) {
  const std::size_t before = mapped_segments();
  {
    auto segment = MemorySegment::create(4096).value().segment;
    EXPECT_GT(mapped_segments(), before);
    EXPECT_TRUE(in_child([&] {
      segment = {};
      return mapped_segments() == before;
    }));
  }
  EXPECT_EQ(mapped_segments(), before);
}

TEST(SharedMapping, ForksWhileOtherThreadsMapAndUnmap) {
  const auto segment = MemorySegment::create(4096).value().segment;
  std::atomic<bool> over{false};
  std::thread maps([&] {
    while (!over.load()) {
      const auto [first, second] = mapped_twice(4096);
      EXPECT_EQ(second.data()[0], std::byte{0});
    }
  });
  for (int i = 0; i < 30; ++i) {
    EXPECT_TRUE(in_child([&] {
      segment.data()[0] = std::byte{1};
      return true;
    }));
  }
  over.store(true);
  maps.join();
  EXPECT_EQ(segment.data()[0], std::byte{0});
}

}  // namespace
}  // namespace ciranda
