// What could break: a socket that wakes nobody, or somebody twice.
#include "core/transport/tcp/socket_set.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "core/base/clock.h"

namespace ciranda {
namespace {

class SocketSetTest : public ::testing::Test {
 protected:
  SocketSetTest() : set(SocketSet::create().value()) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
    near = Fd(ends[0]);
    far = Fd(ends[1]);
  }

  std::vector<std::uint32_t> woken_by() {
    const auto numbers = set.wait(0);
    return {numbers.begin(), numbers.end()};
  }
  void send() { ASSERT_EQ(::write(far.get(), "x", 1), 1); }

  using Numbers = std::vector<std::uint32_t>;
  SocketSet set;
  Fd near, far;
};

TEST_F(SocketSetTest, ADescriptorThatStaysWakesUntilItIsRead) {
  ASSERT_TRUE(set.add(near.get(), 7).ok());
  EXPECT_EQ(woken_by(), Numbers());
  send();
  EXPECT_EQ(woken_by(), Numbers{7});
  EXPECT_EQ(woken_by(), Numbers{7});
  char byte = 0;
  ASSERT_EQ(::read(near.get(), &byte, 1), 1);
  EXPECT_EQ(woken_by(), Numbers());
}

TEST_F(SocketSetTest, ARemovedDescriptorWakesNobody) {
  ASSERT_TRUE(set.add(near.get(), 7).ok());
  set.remove(near.get());
  send();
  EXPECT_EQ(woken_by(), Numbers());
}

TEST_F(SocketSetTest, AnArmedSocketWakesOnceUntilItIsArmedAgain) {
  set.arm({{.socket = near.get(), .readable = true}});
  send();
  EXPECT_EQ(woken_by(), Numbers{SocketSet::kArmed});
  EXPECT_EQ(woken_by(), Numbers());
  set.disarm();
  set.arm({{.socket = near.get(), .readable = true}});
  EXPECT_EQ(woken_by(), Numbers{SocketSet::kArmed});
}

TEST_F(SocketSetTest, OnlyWhatWasArmedLastWakes) {
  set.arm({{.socket = near.get(), .readable = true}});
  set.arm({});
  send();
  EXPECT_EQ(woken_by(), Numbers());
}

TEST_F(SocketSetTest, OneSocketIsArmedForBothDirections) {
  set.arm({{.socket = near.get(), .readable = true}, {.socket = near.get(), .writable = true}});
  EXPECT_EQ(woken_by(), Numbers{SocketSet::kArmed}) << "it takes bytes";
  set.disarm();
  send();
  set.arm({{.socket = near.get(), .readable = true}});
  EXPECT_EQ(woken_by(), Numbers{SocketSet::kArmed});
}

TEST_F(SocketSetTest, WhatIsNoSocketIsPassedOver) {
  set.arm({{}, {.socket = near.get(), .readable = true}});
  send();
  EXPECT_EQ(woken_by(), Numbers{SocketSet::kArmed});
  EXPECT_EQ(woken_by(), Numbers());
}

TEST_F(SocketSetTest, WhatFindsNoRoomInOneWaitComesWithTheNext) {
  std::vector<Fd> events;
  std::set<std::uint32_t> missing;
  for (std::uint32_t number = 0; number < 40; ++number) {
    events.emplace_back(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
    ASSERT_TRUE(set.add(events.back().get(), number).ok());
    missing.insert(number);
  }
  for (int waits = 0; waits < 40 && !missing.empty(); ++waits) {
    for (const std::uint32_t number : woken_by()) missing.erase(number);
  }
  EXPECT_TRUE(missing.empty());
}

TEST_F(SocketSetTest, AWaitEndsWithItsTime) {
  const std::uint64_t deadline_ns = monotonic_ns() + 1'200'000;
  EXPECT_TRUE(set.wait(deadline_ns).empty());
  EXPECT_GE(monotonic_ns(), deadline_ns) << "no second wait has to follow";
}

TEST_F(SocketSetTest, AWaitWithoutATimeEndsWithACall) {
  ASSERT_TRUE(set.add(near.get(), 7).ok());
  std::thread caller([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    send();
  });
  EXPECT_EQ(set.wait(kNever).size(), 1u);
  caller.join();
}

}  // namespace
}  // namespace ciranda
