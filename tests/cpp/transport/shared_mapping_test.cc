// What could break: a forked child that writes to what the parent's job computes with, one that
// loses what it wrote, a fork that hangs because another thread maps memory.
#include "core/transport/shared_mapping.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "core/transport/memory_segment.h"

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

MemorySegment same_memory(const MemorySegment& segment) {
  return MemorySegment::open(Fd(::dup(segment.fd())), segment.bytes()).value();
}

std::size_t mapped_segments() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:") != line.npos;
  return count;
}

TEST(SharedMapping, WhatAForkedChildWritesStaysItsOwn) {
  const auto segment = MemorySegment::create(100'000).value();
  const auto of_peer = same_memory(segment);
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
  const auto segment = MemorySegment::create(4096).value();
  const auto of_peer = same_memory(segment);
  EXPECT_TRUE(in_child([] { return true; }));
  segment.data()[0] = std::byte{1};
  EXPECT_EQ(of_peer.data()[0], std::byte{1});
}

TEST(SharedMapping, AChildOfAChildGetsWhatTheChildWrote) {
  const auto segment = MemorySegment::create(4096).value();
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
    const auto segment = MemorySegment::create(4096).value();
    const auto of_peer = same_memory(segment);
    segment.data()[0] = std::byte{1};
    return of_peer.data()[0] == std::byte{1};
  }));
}

TEST(SharedMapping, NothingStaysMapped) {
  const std::size_t before = mapped_segments();
  {
    auto segment = MemorySegment::create(4096).value();
    EXPECT_GT(mapped_segments(), before);
    EXPECT_TRUE(in_child([&] {
      segment = {};
      return mapped_segments() == before;
    }));
  }
  EXPECT_EQ(mapped_segments(), before);
}

TEST(SharedMapping, ForksWhileOtherThreadsMapAndUnmap) {
  const auto segment = MemorySegment::create(4096).value();
  std::atomic<bool> over{false};
  std::thread maps([&] {
    while (!over.load()) {
      const auto first = MemorySegment::create(4096).value();
      const auto second = same_memory(first);
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
