// What could break: a rank that sleeps although there is something that it must do. Random programs
// of several threads a rank, in which every operation that all ranks submit has to end; under TSan
// other threads go first at each step of the protocol, by chance (base/yield_point.h).
#include "core/engine/seat.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/yield_point.h"
#include "engine/world.h"

namespace ciranda::testing {
namespace {

constexpr int kSeeds = kYieldPoints ? 10 : 20;
constexpr int kOperations = 40;  // of each thread

struct Shape {
  int ranks;
  int threads;  // of each rank
  bool overlap;
};

class SeatUnderStress : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, SeatUnderStress,
                         ::testing::Values(Shape{1, 2, false}, Shape{2, 1, false},
                                           Shape{2, 2, false}, Shape{2, 2, true},
                                           Shape{3, 2, false}, Shape{3, 2, true}),
                         [](const auto& row) {
                           const Shape& shape = row.param;
                           return std::to_string(shape.ranks) + "ranks" +
                                  std::to_string(shape.threads) + "threads" +
                                  (shape.overlap ? "overlap" : "");
                         });

// Submits ahead, polls, waits for an old one or for the newest, as it comes; some of it in `set`,
// which leaves the last rank out.
void run_program(Engine& engine, int thread, GroupId set, std::mt19937 random) {
  struct Running {
    std::vector<float> tensor;
    float sum = 0;
    Handle handle;
  };
  std::vector<Running> running;
  running.reserve(kOperations);
  std::size_t oldest = 0;
  for (int i = 0; i < kOperations; ++i) {
    const GroupId group = i % 3 == 1 ? set : kWorldGroup;
    if (group != kWorldGroup && engine.rank() == engine.size() - 1) continue;
    Running& mine = running.emplace_back();
    mine.tensor.assign(i % 7 == 0 ? 70'000 : 5, 1.0f);
    mine.sum = static_cast<float>(engine.size() - (group != kWorldGroup ? 1 : 0));
    const std::string name = std::to_string(thread) + "." + std::to_string(i);
    auto handle = allreduce(engine, mine.tensor, {.name = name, .group = group});
    ASSERT_TRUE(handle.ok()) << handle.error().text;
    mine.handle = std::move(handle).value();
    switch (random() % 4) {
      case 0:
        ASSERT_TRUE(engine.wait(mine.handle).ok());
        break;
      case 1:
        ASSERT_TRUE(engine.wait(running[oldest++].handle).ok());
        break;
      case 2:
        engine.poll(mine.handle);
        break;
      default:
        break;
    }
  }
  for (const Running& each : running) {
    ASSERT_TRUE(engine.wait(each.handle).ok());
    EXPECT_EQ(each.tensor.front(), each.sum);
    EXPECT_EQ(each.tensor.back(), each.sum);
  }
}

TEST_P(SeatUnderStress, WhatAllRanksSubmitEnds) {
  const auto [ranks, threads, overlap] = GetParam();
  for (int seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    set_yield_seed(static_cast<std::uint64_t>(seed));
    // Hardly any time to look for news: who waits sleeps.
    World world(ranks, {.pace = {.overlap = overlap, .spin_ns = seed % 2 == 0 ? 0u : 2'000u}});
    world.run([&, threads = threads](Engine& engine) {
      std::vector<Rank> members(static_cast<std::size_t>(engine.size() - 1));
      std::iota(members.begin(), members.end(), 0);
      const GroupId set = members.empty() ? kWorldGroup : engine.add_group(members).value()->id;
      std::atomic<bool> over = false;
      std::thread visitor([&] {
        for (bool other = seed % 4 < 2; !over; other = !other && seed % 4 < 2) {
          if (other) engine.set_pace({.overlap = !engine.pace().overlap, .spin_ns = 1'000});
          static_cast<void>(engine.pending());
        }
      });
      std::vector<std::thread> users;
      for (int thread = 0; thread < threads; ++thread) {
        users.emplace_back([&, thread] {
          // The same choices on no two ranks.
          const auto mix = static_cast<unsigned>(seed * 100 + engine.rank() * 10 + thread);
          run_program(engine, thread, set, std::mt19937(mix));
        });
      }
      for (std::thread& user : users) user.join();
      over = true;
      visitor.join();
    });
  }
  set_yield_seed(0);
}

// In turn, each rank submits two operations, waits for the first and stays away until all others
// have got the second, which they submit only then: but for its background thread nothing of it
// helps.
TEST_P(SeatUnderStress, ARankThatComputesKeepsNobodyWaiting) {
  const Shape shape = GetParam();
  for (int seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    set_yield_seed(static_cast<std::uint64_t>(seed));
    std::vector<std::atomic<int>> passed(static_cast<std::size_t>(shape.ranks));
    World world(shape.ranks,
                {.pace = {.overlap = shape.overlap, .spin_ns = seed % 2 == 0 ? 0u : 2'000u}});
    world.run([&](Engine& engine) {
      std::vector<float> first(5, 1.0f);
      std::vector<float> second(5, 1.0f);
      for (int i = 1; i <= kOperations; ++i) {
        const auto submit = [&](std::vector<float>& tensor, const char* name) {
          return allreduce(engine, tensor, {.name = name}).value();
        };
        const Handle one = submit(first, "first");
        if (i % engine.size() == engine.rank()) {
          const Handle other = submit(second, "second");
          ASSERT_TRUE(engine.wait(one).ok());
          for (Rank peer = 0; peer < engine.size(); ++peer) {
            const auto& progress = passed[static_cast<std::size_t>(peer)];
            while (peer != engine.rank() && progress < i) std::this_thread::yield();
          }
          ASSERT_TRUE(engine.wait(other).ok());
        } else {
          ASSERT_TRUE(engine.wait(one).ok());
          ASSERT_TRUE(engine.wait(submit(second, "second")).ok());
        }
        passed[static_cast<std::size_t>(engine.rank())] = i;
      }
    });
  }
  set_yield_seed(0);
}

// Each rank ends while others may still wait for it, or it for them.
TEST_P(SeatUnderStress, AShutdownEndsWhatever) {
  const auto [ranks, threads, overlap] = GetParam();
  for (int seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    set_yield_seed(static_cast<std::uint64_t>(seed));
    World world(ranks, {.pace = {.overlap = overlap, .spin_ns = 1'000}});
    world.run([&, threads = threads](Engine& engine) {
      std::vector<std::thread> users;
      for (int thread = 0; thread < threads; ++thread) {
        users.emplace_back([&, thread] {
          std::vector<float> tensor(5, 1.0f);
          for (int i = 0; i < 5; ++i) {
            const std::string name = std::to_string(thread) + "." + std::to_string(i);
            auto handle = allreduce(engine, tensor, {.name = name});
            if (!handle.ok() || !engine.wait(handle.value()).ok()) return;
          }
        });
      }
      std::mt19937 random(static_cast<unsigned>(seed * 10 + engine.rank()));
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      engine.shutdown();
      for (std::thread& user : users) user.join();
    });
  }
  set_yield_seed(0);
}

TEST(Seat, WaitingForWhatIsDoneTakesNoSeat) {
  World world(1);
  std::vector<float> tensor(5, 1.0f);
  auto handle = allreduce(world[0], tensor);
  ASSERT_TRUE(world[0].wait(handle.value()).ok());
  const std::uint64_t waited_ns = world[0].stats().waiting_ns;
  ASSERT_TRUE(world[0].wait(handle.value()).ok());
  EXPECT_EQ(world[0].stats().waiting_ns, waited_ns);
}

}  // namespace
}  // namespace ciranda::testing
