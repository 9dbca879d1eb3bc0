// What could break: agreement between ranks, data on its way through slots and chunks, and calls
// that never return.
#include "core/engine/engine.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <numeric>
#include <random>

#include "core/base/clock.h"
#include "core/transport/local/control_block.h"
#include "core/transport/local/shm_log.h"
#include "core/wire/messages.h"
#include "engine/world.h"
#include "sanitizers.h"

namespace ciranda::testing {
namespace {

class EngineOnRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EngineOnRanks, ::testing::Values(1, 2, 3, 4, 8));

std::vector<float> ramp(std::size_t count, float start) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), start);
  return values;
}

TEST_P(EngineOnRanks, AllreduceSumsTensorsOfAnySize) {
  World world(GetParam());
  const auto n = static_cast<float>(world.size());
  for (const std::size_t count : {0u, 1u, 7u, 1000u, 4097u, 70'000u, 1'000'003u}) {
    world.run([&](Engine& engine) {
      std::vector<float> tensor(count, static_cast<float>(engine.rank() + 1));
      auto handle = allreduce(engine, tensor);
      ASSERT_TRUE(handle.ok());
      ASSERT_TRUE(engine.wait(handle.value()).ok());
      EXPECT_EQ(tensor, std::vector<float>(count, n * (n + 1) / 2)) << count;
    });
  }
}

TEST_P(EngineOnRanks, Float8IsMovedThoughNotReduced) {
  World world(GetParam());
  world.run([&](Engine& engine) {
    std::vector<std::uint8_t> bits(1000, static_cast<std::uint8_t>(engine.rank() + 0x38));
    auto* const data = reinterpret_cast<std::byte*>(bits.data());
    RequestSpec spec{.name = "f",
                     .kind = OpKind::kBroadcast,
                     .root = engine.size() - 1,
                     .tensors = {{.dtype = DType::kFloat8E4M3, .shape = {1000}}}};
    Submission submission;
    submission.spec = std::make_shared<RequestSpec>(std::move(spec));
    submission.inputs = {data};
    submission.outputs = {data};
    auto handle = engine.submit(std::move(submission));
    ASSERT_TRUE(handle.ok());
    ASSERT_TRUE(engine.wait(handle.value()).ok());
    EXPECT_EQ(bits,
              std::vector<std::uint8_t>(1000, static_cast<std::uint8_t>(engine.size() - 1 + 0x38)));
  });
}

TEST_P(EngineOnRanks, AllreduceAveragesMinsMaxesAndMultiplies) {
  World world(GetParam());
  const auto n = static_cast<double>(world.size());
  world.run([&](Engine& engine) {
    const std::vector<std::pair<ReduceOp, double>> expected = {
        {ReduceOp::kAverage, (n + 1) / 2},
        {ReduceOp::kMin, 1},
        {ReduceOp::kMax, n},
        {ReduceOp::kProduct, std::tgamma(n + 1)}};
    for (const auto& [op, value] : expected) {
      std::vector<double> tensor(300, engine.rank() + 1);
      auto handle = allreduce(engine, tensor, {.op = op});
      ASSERT_TRUE(engine.wait(handle.value()).ok());
      EXPECT_EQ(tensor, std::vector<double>(300, value)) << reduce_op_name(op);
    }
  });
}

TEST_P(EngineOnRanks, ManyNamedTensorsInAnotherOrderOnEachRank) {
  World world(GetParam());
  constexpr int kTensors = 60;
  for (int step = 0; step < 5; ++step) {
    world.run([&](Engine& engine) {
      std::vector<std::vector<float>> tensors(kTensors);
      std::vector<int> order(kTensors);
      std::iota(order.begin(), order.end(), 0);
      std::mt19937 random(static_cast<unsigned>(engine.rank() * 100 + step));
      std::shuffle(order.begin(), order.end(), random);
      std::vector<Handle> handles;
      for (const int i : order) {
        const auto count = static_cast<std::size_t>(1 + i * 37);
        tensors[static_cast<std::size_t>(i)].assign(count, static_cast<float>(i));
        auto handle = allreduce(engine, tensors[static_cast<std::size_t>(i)],
                                {.name = "t" + std::to_string(i)});
        ASSERT_TRUE(handle.ok());
        handles.push_back(handle.value());
      }
      ASSERT_TRUE(engine.wait(handles).ok());
      for (int i = 0; i < kTensors; ++i) {
        const auto& tensor = tensors[static_cast<std::size_t>(i)];
        EXPECT_EQ(tensor, std::vector<float>(tensor.size(), static_cast<float>(i * world.size())));
      }
    });
  }
}

TEST_P(EngineOnRanks, GroupsRunWhole) {
  World world(GetParam());
  world.run([&](Engine& engine) {
    std::vector<float> a(10, 1.0F);
    std::vector<float> b(100'000, 2.0F);
    std::vector<float> c;
    auto handle = engine.submit(in_place<float>(OpKind::kAllreduce, {&a, &b, &c}, {}));
    ASSERT_TRUE(engine.wait(handle.value()).ok());
    EXPECT_EQ(a, std::vector<float>(10, 1.0F * static_cast<float>(world.size())));
    EXPECT_EQ(b, std::vector<float>(100'000, 2.0F * static_cast<float>(world.size())));
  });
}

TEST_P(EngineOnRanks, BroadcastGivesTheRootsData) {
  World world(GetParam());
  world.run([&](Engine& engine) {
    for (const std::size_t count : {1u, 5000u, 400'000u}) {
      const Rank root = world.size() - 1;
      std::vector<float> tensor = ramp(count, static_cast<float>(engine.rank()));
      auto handle = engine.submit(in_place<float>(OpKind::kBroadcast, {&tensor}, {.root = root}));
      ASSERT_TRUE(engine.wait(handle.value()).ok());
      EXPECT_EQ(tensor, ramp(count, static_cast<float>(root)));
    }
  });
}

TEST_P(EngineOnRanks, AllgatherConcatenatesUnequalRows) {
  World world(GetParam());
  world.run([&](Engine& engine) {
    for (const std::size_t unit : {0u, 1u, 1000u, 100'000u}) {
      const auto rows_of = [&](int rank) { return unit * static_cast<std::size_t>(rank); };
      std::vector<float> input(rows_of(engine.rank()), static_cast<float>(engine.rank()));
      std::vector<float> output;
      auto handle = gather_like(engine, OpKind::kAllgather, input,
                                {static_cast<std::int64_t>(input.size())}, output);
      ASSERT_TRUE(engine.wait(handle.value()).ok());
      std::vector<float> expected;
      for (int rank = 0; rank < world.size(); ++rank) {
        expected.insert(expected.end(), rows_of(rank), static_cast<float>(rank));
      }
      EXPECT_EQ(output, expected);
    }
  });
}

TEST_P(EngineOnRanks, AlltoallSendsUnequalSplits) {
  World world(GetParam());
  world.run([&](Engine& engine) {
    for (const std::int64_t unit : {0, 1, 30'000}) {
      // Rank s sends (s + d) * unit rows with the value 100 s + d to rank d.
      std::vector<std::int64_t> splits;
      std::vector<float> input;
      for (int d = 0; d < world.size(); ++d) {
        splits.push_back((engine.rank() + d) * unit);
        input.insert(input.end(), static_cast<std::size_t>(splits.back()),
                     static_cast<float>(100 * engine.rank() + d));
      }
      std::vector<float> output;
      auto handle = gather_like(engine, OpKind::kAlltoall, input, splits, output);
      ASSERT_TRUE(engine.wait(handle.value()).ok());
      std::vector<float> expected;
      for (int s = 0; s < world.size(); ++s) {
        expected.insert(expected.end(), static_cast<std::size_t>((s + engine.rank()) * unit),
                        static_cast<float>(100 * s + engine.rank()));
      }
      EXPECT_EQ(output, expected);
    }
  });
}

TEST_P(EngineOnRanks, ReducescatterGivesFirstRanksTheRemainder) {
  World world(GetParam());
  world.run([&](Engine& engine) {
    for (const std::size_t count : {1u, 11u, 300'001u}) {
      std::vector<float> input = ramp(count, 0.0F);
      std::vector<float> output;
      auto handle = gather_like(engine, OpKind::kReducescatter, input, {}, output);
      ASSERT_TRUE(engine.wait(handle.value()).ok());
      const auto n = static_cast<std::size_t>(world.size());
      const auto r = static_cast<std::size_t>(engine.rank());
      const std::size_t begin = r * (count / n) + std::min(r, count % n);
      const std::size_t rows = count / n + (r < count % n ? 1 : 0);
      ASSERT_EQ(output.size(), rows);
      for (std::size_t i = 0; i < rows; ++i) {
        ASSERT_EQ(output[i], static_cast<float>(begin + i) * static_cast<float>(n));
      }
    }
  });
}

TEST_P(EngineOnRanks, BucketsInTheArenaAreReducedWhereTheyLie) {
  World world(GetParam());
  constexpr std::size_t kBuckets = 300;  // more than there are claim boards
  std::vector<std::vector<ArenaBuffer>> arenas(static_cast<std::size_t>(world.size()));
  for (int step = 0; step < 3; ++step) {
    world.run([&](Engine& engine) {
      auto& buckets = arenas[static_cast<std::size_t>(engine.rank())];
      std::vector<Handle> handles;
      for (std::size_t b = 0; b < kBuckets; ++b) {
        const std::size_t count = b == 7 ? 500'000 : 10 + b;
        if (step == 0) {
          auto arena = engine.allocate_arena(count * sizeof(float));
          ASSERT_TRUE(arena.ok());
          buckets.push_back(std::move(arena).value());
        }
        auto* data = reinterpret_cast<float*>(buckets[b].data);
        std::fill_n(data, count, static_cast<float>(engine.rank() + 1));
        auto handle = engine.submit(bucket_in(
            buckets[b], count, {.name = "bucket" + std::to_string(b), .op = ReduceOp::kAverage}));
        ASSERT_TRUE(handle.ok()) << handle.error().text;
        handles.push_back(handle.value());
      }
      ASSERT_TRUE(engine.wait(handles).ok());
      for (std::size_t b = 0; b < kBuckets; ++b) {
        const auto* data = reinterpret_cast<float*>(buckets[b].data);
        ASSERT_EQ(data[0], static_cast<float>(world.size() + 1) / 2.0F) << b;
        ASSERT_EQ(data[9], static_cast<float>(world.size() + 1) / 2.0F) << b;
      }
    });
  }
}

TEST_P(EngineOnRanks, ABucketOfManyTensorsIsOneOperation) {
  World world(GetParam());
  constexpr std::int64_t kTensors = 700;  // more than a host can have ranks
  world.run([&](Engine& engine) {
    auto arena = engine.allocate_arena(kTensors * 16 * sizeof(float)).value();
    auto* data = reinterpret_cast<float*>(arena.data);
    std::fill_n(data, kTensors * 16, 1.0F);
    RequestSpec spec{.name = "bucket",
                     .in_arena = true,
                     .arena_bytes = kTensors * 16 * sizeof(float),
                     .tensors = {}};
    spec.tensors.assign(kTensors, {DType::kFloat32, {16}});
    Submission submission;
    submission.spec = std::make_shared<RequestSpec>(std::move(spec));
    submission.arena = arena.ref;
    ASSERT_TRUE(engine.wait(engine.submit(std::move(submission)).value()).ok());
    EXPECT_EQ(data[0], static_cast<float>(world.size()));
    EXPECT_EQ(data[kTensors * 16 - 1], static_cast<float>(world.size()));
  });
}

TEST_P(EngineOnRanks, BarrierWaitsForTheLastRank) {
  World world(GetParam());
  std::atomic<int> arrived{0};
  world.run([&](Engine& engine) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10 * engine.rank()));
    ++arrived;
    Submission barrier;
    barrier.spec = std::make_shared<RequestSpec>(
        RequestSpec{.name = unnamed(OpKind::kBarrier), .kind = OpKind::kBarrier, .tensors = {}});
    auto handle = engine.submit(std::move(barrier));
    ASSERT_TRUE(engine.wait(handle.value()).ok());
    EXPECT_EQ(arrived.load(), world.size());
  });
}

// It remembers the number of what it asked for last.
TEST(Engine, AsksAgainForASpecWhoseNumberWasEvicted) {
  World world(2, {.pace = {.spin_ns = 20'000}, .cache_entries = 1});
  world.run([](Engine& engine) {
    const auto of_rank_1 = engine.add_group({1});
    ASSERT_TRUE(of_rank_1.ok());
    std::vector<float> tensor(1);
    const auto again = in_place<float>(OpKind::kAllreduce, {&tensor}, {.name = "again"});
    for (int i = 0; i < 100; ++i) {
      tensor[0] = 1.0F;
      Submission submission;
      submission.spec = again.spec;  // the same object
      submission.inputs = again.inputs;
      submission.outputs = again.outputs;
      ASSERT_TRUE(engine.wait(engine.submit(std::move(submission)).value()).ok());
      ASSERT_EQ(tensor[0], 2.0F);
      // Rank 1 takes its place by an operation of its own, which rank 0 does not ask for.
      if (engine.rank() == 0 || i % 3 == 2) continue;
      std::vector<float> other(1, 1.0F);
      auto handle =
          allreduce(engine, other, {.name = std::to_string(i), .group = of_rank_1.value()->id});
      ASSERT_TRUE(engine.wait(handle.value()).ok());
    }
  });
}

TEST(Engine, MismatchIsTheSameErrorOnEveryRankAndTheWorldGoesOn) {
  World world(3);
  std::vector<std::string> texts(3);
  world.run([&](Engine& engine) {
    std::vector<float> tensor(engine.rank() == 1 ? 5 : 4, 1.0F);
    auto handle = allreduce(engine, tensor, {.name = "w"});
    const Status status = engine.wait(handle.value());
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
    texts[static_cast<std::size_t>(engine.rank())] = status.error().text;
    std::vector<float> again(4, 1.0F);
    auto good = allreduce(engine, again, {.name = "w"});
    EXPECT_TRUE(engine.wait(good.value()).ok());
    EXPECT_EQ(again[0], 3.0F);
  });
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[0], texts[2]);
  EXPECT_NE(texts[0].find("'w'"), std::string::npos) << texts[0];
}

TEST(Engine, ANameSubmittedTwiceIsRefusedAtOnce) {
  World world(2);
  std::vector<float> a(4, 1.0F);
  std::vector<float> b(4, 1.0F);
  auto first = allreduce(world[0], a, {.name = "same"});
  auto second = allreduce(world[0], b, {.name = "same"});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kDuplicateName);
  std::vector<float> c(4, 1.0F);
  auto other = allreduce(world[1], c, {.name = "same"});
  EXPECT_TRUE(world[1].poll(other.value()) || true);
  std::thread peer([&] { EXPECT_TRUE(world[0].wait(first.value()).ok()); });
  EXPECT_TRUE(world[1].wait(other.value()).ok());
  peer.join();
  EXPECT_EQ(a[0], 2.0F);
}

TEST(Engine, PollingEndsWhatAComputingRankHasSubmitted) {
  World world(2);
  std::vector<float> a(400'000, 1.0F);
  std::vector<float> b(400'000, 2.0F);
  auto computing = allreduce(world[1], b, {.name = "w"});
  auto polling = allreduce(world[0], a, {.name = "w"});
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!world[0].poll(polling.value()) && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(polling.value()->done());
  EXPECT_EQ(a[0], 3.0F);
  EXPECT_TRUE(world[1].wait(computing.value()).ok());
  EXPECT_EQ(b[0], 3.0F);
}

TEST(Engine, AComputingRankNeedNotTakePartInABucket) {
  World world(2);
  std::vector<ArenaBuffer> arena;
  std::vector<Handle> handles;
  for (int rank = 0; rank < 2; ++rank) {
    auto buffer = world[rank].allocate_arena(1 << 20);
    arena.push_back(std::move(buffer).value());
    auto* data = reinterpret_cast<float*>(arena.back().data);
    std::fill_n(data, 1 << 18, 1.0F);
    Submission submission = bucket_in(arena.back(), 1 << 18, {.name = "bucket"});
    handles.push_back(world[rank].submit(std::move(submission)).value());
  }
  // Rank 0 never calls in; rank 1 does all of the work, for both.
  EXPECT_TRUE(world[1].wait(handles[1]).ok());
  EXPECT_EQ(reinterpret_cast<float*>(arena[0].data)[12345], 2.0F);
  EXPECT_EQ(reinterpret_cast<float*>(arena[1].data)[12345], 2.0F);
}

TEST_P(EngineOnRanks, WorkOnABucketRunsOnceForEachPiece) {
  World world(GetParam());
  world.run([&](Engine& engine) {
    constexpr std::size_t kFloats = 300'000;  // several chunks and a part of one
    auto arena = engine.allocate_arena(kFloats * sizeof(float));
    ASSERT_TRUE(arena.ok());
    auto* data = reinterpret_cast<float*>(arena.value().data);
    std::fill_n(data, kFloats, 0.0F);
    for (int round = 1; round <= 20; ++round) {
      Submission submission = bucket_in(arena.value(), kFloats, {.name = "step"}, "add one");
      submission.work = [](std::uint64_t begin, std::uint64_t bytes,
                           std::span<std::byte* const> memory) {
        for (std::byte* rank : memory) {
          auto* piece = reinterpret_cast<float*>(rank + begin);
          for (std::size_t i = 0; i < bytes / sizeof(float); ++i) piece[i] += 1.0F;
        }
      };
      auto handle = engine.submit(std::move(submission));
      ASSERT_TRUE(handle.ok());
      ASSERT_TRUE(engine.wait(handle.value()).ok());
      for (std::size_t i = 0; i < kFloats; ++i) ASSERT_EQ(data[i], static_cast<float>(round));
      // The others look at their own memory too before anybody adds again.
      Submission barrier;
      barrier.spec = std::make_shared<RequestSpec>(
          RequestSpec{.name = "looked", .kind = OpKind::kBarrier, .tensors = {}});
      ASSERT_TRUE(engine.wait(engine.submit(std::move(barrier)).value()).ok());
    }
  });
}

TEST(Engine, MapsWhatAPeerHasAllocated) {
  World world(2);
  auto arena = world[0].allocate_arena(4096);
  ASSERT_TRUE(arena.ok());
  auto mapped = world[1].map_arena(0, arena.value().ref, 4096);
  ASSERT_TRUE(mapped.ok()) << mapped.error().text;
  arena.value().data[7] = std::byte{42};
  EXPECT_EQ(mapped.value().data[7], std::byte{42});
  EXPECT_FALSE(world[1].map_arena(0, {.segment = 77, .offset = 0}, 1).ok());
  EXPECT_FALSE(world[1].map_arena(0, arena.value().ref, std::size_t{1} << 40).ok());
}

TEST(Engine, MemoryThatAPeerHasMappedIsNotLentAgain) {
  World world(2);
  auto arena = world[0].allocate_arena(4096).value();
  auto mapped = world[1].map_arena(0, arena.ref, 4096).value();
  arena = {};
  const auto other = world[0].allocate_arena(4096).value();
  other.data[7] = std::byte{42};
  EXPECT_EQ(mapped.data[7], std::byte{0});
  mapped = {};
  EXPECT_EQ(world[0].allocate_arena(4096).value().ref.segment, 0u);
}

TEST(Engine, AStagedOperationEndsAlthoughOneRankOnlyComputes) {
  World world(2);
  std::vector<float> a(1'000'000, 1.0F);
  std::vector<float> b(1'000'000, 2.0F);
  auto absent = allreduce(world[0], a);
  auto present = allreduce(world[1], b);
  EXPECT_TRUE(world[1].wait(present.value()).ok());  // asks rank 0's background thread to drive
  EXPECT_EQ(b[999'999], 3.0F);
  EXPECT_TRUE(world[0].wait(absent.value()).ok());
}

TEST(Engine, ALostRankEndsTheOthersWithItsName) {
  World world(3);
  std::vector<float> tensor(10, 1.0F);
  auto handle = allreduce(world[1], tensor);
  const std::uint64_t begin = monotonic_ns();
  world[0].abort("rank 0 raised ValueError: boom");
  const Status status = world[1].wait(handle.value());
  EXPECT_LT(monotonic_ns() - begin, 1'000'000'000u);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kRankLost);
  EXPECT_EQ(status.error().rank, 0);
  EXPECT_NE(status.error().text.find("boom"), std::string::npos);
}

TEST(Engine, AThreadThatIsInterruptedWaitsNoLonger) {
  std::atomic<int> asked = 0;
  World world(2, {.pace = {.spin_ns = 20'000}, .interrupted = [&] { return ++asked == 2; }});
  std::vector<float> tensor(10, 1.0F);
  auto handle = allreduce(world[1], tensor);
  const Status status = world[1].wait(handle.value());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kRankLost);
  EXPECT_EQ(status.error().rank, 1);
  EXPECT_NE(status.error().text.find("was interrupted while it waited"), std::string::npos);
  EXPECT_EQ(asked, 2);
}

TEST(Engine, WhatEveryRankContributedIsDeliveredAlthoughOneRaisesNext) {
  World world(2);
  std::vector<float> a(10, 1.0F);
  std::vector<float> b(10, 2.0F);
  auto first = allreduce(world[0], a);
  auto second = allreduce(world[1], b);
  std::thread peer([&] {
    EXPECT_TRUE(world[1].wait(second.value()).ok());
    world[1].abort("rank 1 raised ValueError: boom");
  });
  peer.join();
  EXPECT_TRUE(world[0].wait(first.value()).ok());
  EXPECT_EQ(a[0], 3.0F);
}

TEST(Engine, ARankThatLeavesEndsWhatOthersNeedItFor) {
  World world(2);
  std::vector<float> tensor(10, 1.0F);
  auto handle = allreduce(world[1], tensor, {.name = "late"});
  world[0].shutdown();
  const Status status = world[1].wait(handle.value());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kRankLeft);
  EXPECT_EQ(status.error().rank, 0);
}

// While rank 1 is busy, rank 0 tells it of new memory, reduces what lies there for both, says
// goodbye and is gone: rank 1 finds all of it at once, the memory last.
TEST(Engine, ARankThatLeftAtOnceWasHeardInOrder) {
  constexpr std::size_t kFloats = 1024;
  World world(2);
  std::latch busy(1);
  std::latch gone(1);
  const auto bucket = [&world](int rank, const std::string& name, decltype(Submission::work) work) {
    auto arena = world[rank].allocate_arena(kFloats * sizeof(float));
    std::fill_n(reinterpret_cast<float*>(arena.value().data), kFloats, 1.0F);
    Submission submission = bucket_in(arena.value(), kFloats, {.name = name});
    submission.work = std::move(work);
    auto handle = world[rank].submit(std::move(submission));
    return std::pair(std::move(arena).value(), std::move(handle).value());
  };
  const auto nothing = [](std::uint64_t, std::uint64_t, std::span<std::byte* const>) {};
  std::shared_ptr<void> holds(&world, [&](void*) {  // when rank 1 has finished "first"
    busy.count_down();
    gone.wait();
  });
  const auto first = bucket(1, "first", [nothing, holds](auto... piece) { nothing(piece...); });
  const auto late = bucket(1, "late", {});
  const auto never = bucket(1, "never", {});
  holds.reset();
  const auto also_first = bucket(0, "first", nothing);
  std::thread waiter([&] {
    EXPECT_TRUE(world[1].wait(late.second).ok());
    const Status status = world[1].wait(never.second);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kRankLeft);
  });
  busy.wait();
  const auto early = bucket(0, "late", {});
  EXPECT_TRUE(world[0].wait(early.second).ok());
  world[0].shutdown();
  gone.count_down();
  waiter.join();
  EXPECT_EQ(reinterpret_cast<float*>(late.first.data)[7], 2.0F);
}

TEST(Engine, ShutdownEndsPendingOperationsOfThisRank) {
  World world(2);
  std::vector<float> tensor(10, 1.0F);
  auto handle = allreduce(world[0], tensor);
  world[0].shutdown();
  const Status status = world[0].wait(handle.value());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kShutdown);
  EXPECT_FALSE(allreduce(world[0], tensor).ok());
}

// The other rank's request may make an operation agreed just before this one says goodbye.
TEST(Engine, WhatIsAgreedWhileARankLeavesEnds) {
  constexpr int kRounds = 300;
  for (int round = 0; round < kRounds; ++round) {
    World world(2);
    std::latch begin(2);
    world.run([&](Engine& engine) {
      std::vector<float> tensor(8, 1.0f);
      begin.arrive_and_wait();
      auto handle = allreduce(engine, tensor, {.name = "x"});
      if (engine.rank() == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(round % 30));
        return engine.shutdown();
      }
      if (handle.ok()) static_cast<void>(engine.wait(handle.value()));  // it ends
    });
  }
}

TEST(Engine, WhatIsSubmittedDuringAShutdownEnds) {
  for (int round = 0; round < 30; ++round) {
    World world(2);
    std::latch begun(3);
    std::vector<std::thread> submitters;
    for (int t = 0; t < 3; ++t) {
      submitters.emplace_back([&, t] {
        begun.count_down();
        std::vector<float> tensor(1, 1.0F);
        std::vector<Handle> handles;
        for (;;) {
          const std::string name = std::to_string(t) + "." + std::to_string(handles.size());
          auto handle = allreduce(world[0], tensor, {.name = name});
          if (!handle.ok()) break;
          handles.push_back(std::move(handle).value());
        }
        for (const Handle& handle : handles) {
          EXPECT_EQ(world[0].wait(handle).error().code, ErrorCode::kShutdown);
        }
      });
    }
    begun.wait();
    world[0].shutdown();
    for (std::thread& submitter : submitters) submitter.join();
  }
}

// In a child of its own, whose limits it lowers. What it returns, or 2 where it is ended.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 2;
  return WEXITSTATUS(status);
}

[[maybe_unused]] bool no_more_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  limit.rlim_cur = 0;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

// Their stacks find no room.
bool no_more_threads() {
  pthread_attr_t wide;
  return ::pthread_attr_init(&wide) == 0 &&
         ::pthread_attr_setstacksize(&wide, std::size_t{1} << 50) == 0 &&
         ::pthread_setattr_default_np(&wide) == 0;
}

TEST(Engine, AStartThatFailsIsAnErrorAndToldToThePeers) {
  const auto fails = [](bool (*lower)(), const std::string& what) {
    auto meshes = make_loopback(2).value();
    const auto peer = Engine::start(std::move(meshes[1]), {}).value();
    if (!lower()) return 3;
    const auto engine = Engine::start(std::move(meshes[0]), {});
    if (engine.ok() || !engine.error().text.starts_with(what)) return 4;
    std::vector<float> tensor(1);
    const Status told = peer->wait(allreduce(*peer, tensor).value());
    return !told.ok() && told.error().text.find(what) != std::string::npos ? 0 : 5;
  };
  if (!kUnderAsan) {  // with it goes UBSan, which looks at memory through a pipe of its own
    EXPECT_EQ(in_child([&] { return fails(no_more_descriptors, "rank 0 could not start: epoll"); }),
              0);
  }
  EXPECT_EQ(in_child([&] {
              return fails(no_more_threads,
                           "rank 0 could not start: cannot start the thread ciranda: ");
            }),
            0);
}

// On its way to host 0 a frame bears the number of a rank of its host, which is looked up.
TEST(Engine, AFrameOfARankThatIsNotThereEndsTheWorld) {
  std::vector<LocalMesh> meshes = make_loopback(2).value();
  const MemorySegment control = meshes[0].control;
  std::vector<std::unique_ptr<Engine>> engines;
  for (LocalMesh& mesh : meshes) engines.push_back(Engine::start(std::move(mesh), {}).value());
  World world(std::move(engines));
  std::vector<std::byte> goodbye;
  encode(Frame{.kind = FrameKind::kLeave, .requests = {}}, goodbye);
  ShmLog log(ControlBlock(control.data(), 2).log_memory(), 2, /*self=*/1);
  ASSERT_TRUE(log.try_append(goodbye, /*from=*/77, /*ordered=*/false));
  world.run([](Engine& engine) {
    std::vector<float> tensor(3);
    const Result<Handle> handle = allreduce(engine, tensor);
    const Status told = handle ? engine.wait(handle.value()) : Status(handle.error());
    ASSERT_FALSE(told.ok());
    EXPECT_EQ(told.error().code, ErrorCode::kMalformed) << told.error().text;
  });
}

TEST(Engine, ALogFullOfFramesLosesNothing) {
  // Rank 0 submits more than the log holds before rank 1 reads any of it.
  World world(2);
  constexpr std::size_t kOperations = 5'000;
  const std::string long_name(ShmLog::kCellCount * ShmLog::kCellPayloadBytes / kOperations, 'n');
  ASSERT_LT(long_name.size(), kNameBytesMax - 4);
  std::vector<std::vector<float>> a(kOperations, std::vector<float>(1, 1.0F));
  std::vector<std::vector<float>> b(kOperations, std::vector<float>(1, 2.0F));
  world.run([&](Engine& engine) {
    auto& mine = engine.rank() == 0 ? a : b;
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < kOperations; ++i) {
      const std::string name = long_name + std::to_string(i);
      handles.push_back(allreduce(engine, mine[i], {.name = name}).value());
    }
    ASSERT_TRUE(engine.wait(handles).ok());
  });
  for (const auto& tensor : a) ASSERT_EQ(tensor[0], 3.0F);
  for (const auto& tensor : b) ASSERT_EQ(tensor[0], 3.0F);
}

// Who looks something up has the seat for a moment, in which a submitter finds it taken.
TEST(Engine, WhatIsSubmittedWhileAThreadLooksSomethingUpIsTold) {
  constexpr std::uint32_t kRounds = 500;
  World world(2);
  std::atomic<bool> over{false};
  std::atomic<std::uint32_t> done{0};  // rounds that rank 1 is through with
  std::thread looks([&] {
    while (!over) static_cast<void>(world[0].pending());
  });
  std::thread peer([&] {
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      auto barrier = world[1].submit(in_place<float>(OpKind::kBarrier, {}, {}));
      ASSERT_TRUE(barrier.ok() && world[1].wait(barrier.value()).ok());
      done = round + 1;
    }
  });
  const auto peer_is_at = [&](std::uint32_t round) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (done < round && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    return done >= round;
  };
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    auto barrier = world[0].submit(in_place<float>(OpKind::kBarrier, {}, {}));
    ASSERT_TRUE(barrier.ok());
    if (round + 1 == kRounds) over = true;
    EXPECT_TRUE(peer_is_at(round + 1)) << "lost in round " << round;
    ASSERT_TRUE(world[0].wait(barrier.value()).ok());
    if (::testing::Test::HasFailure()) break;
  }
  over = true;
  looks.join();
  if (::testing::Test::HasFailure()) world[0].abort("the test has failed");
  peer.join();
}

TEST(Engine, SeveralThreadsOfARankMayWaitAtATime) {
  World world(2);
  world.run([&](Engine& engine) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&engine, t] {
        for (int i = 0; i < 200; ++i) {
          std::vector<float> tensor(static_cast<std::size_t>(1 + 3000 * (i % 3)), 1.0F);
          auto handle = allreduce(engine, tensor, {.name = "thread" + std::to_string(t)});
          ASSERT_TRUE(engine.wait(handle.value()).ok());
          ASSERT_EQ(tensor[0], 2.0F);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

}  // namespace
}  // namespace ciranda::testing
