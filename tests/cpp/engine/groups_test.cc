// What could break: groups that meet in one another's memory or names, what is left of a removed
// one, and ranks that have joined and are waited for.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "core/engine/run/group_backends.h"
#include "core/wire/pair.h"
#include "engine/world.h"
#include "required.h"
#include "sanitizers.h"

namespace ciranda::testing {
namespace {

template <typename T>
Submission of_group(Submission submission, T group) {
  RequestSpec spec = *submission.spec;
  spec.group = group;
  submission.spec = std::make_shared<const RequestSpec>(std::move(spec));
  return submission;
}

// In place, over the group.
Status reduce_over(Engine& engine, GroupId group, std::vector<float>& tensor,
                   const Options& options = {}) {
  auto handle =
      engine.submit(of_group(in_place<float>(OpKind::kAllreduce, {&tensor}, options), group));
  if (!handle) return handle.error();
  return engine.wait(handle.value());
}

GroupId add(Engine& engine, std::vector<Rank> ranks) {
  const auto group = engine.add_group(std::move(ranks));
  EXPECT_TRUE(group.ok());
  return group.value()->id;
}

TEST(Groups, ReduceAmongTheirMembersAlone) {
  World world(4);
  world.run([](Engine& engine) {
    const GroupId even = add(engine, {0, 2});
    const GroupId odd = add(engine, {1, 3});
    const GroupId mine = engine.rank() % 2 == 0 ? even : odd;
    for (const std::size_t count : {1u, 5u, 4097u, 700'001u}) {
      std::vector<float> tensor(count, static_cast<float>(engine.rank()));
      ASSERT_TRUE(reduce_over(engine, mine, tensor).ok());
      EXPECT_EQ(tensor, std::vector<float>(count, engine.rank() % 2 == 0 ? 2.0f : 4.0f));
      tensor.assign(count, static_cast<float>(engine.rank()));
      ASSERT_TRUE(reduce_over(engine, mine, tensor, {.op = ReduceOp::kAverage}).ok());
      EXPECT_EQ(tensor, std::vector<float>(count, engine.rank() % 2 == 0 ? 1.0f : 2.0f));
    }
  });
}

// More operations than the log has room for: who is outside reads them, though not one by one.
TEST(Groups, LeaveWhoWaitsOutsideAsleep) {
  constexpr int kOperations = 9'000;
  World world(3, {.pace = {.spin_ns = 0}});
  world.run([](Engine& engine) {
    const GroupId group = add(engine, {0, 1});
    const auto switches = [] {
      rusage usage{};
      ::getrusage(RUSAGE_THREAD, &usage);
      return usage.ru_nvcsw;
    };
    const auto before = switches();
    std::vector<float> tensor(1, 1.0f);
    for (int i = 0; i < kOperations && engine.rank() < 2; ++i) {
      tensor[0] = 1.0f;
      ASSERT_TRUE(reduce_over(engine, group, tensor, {.name = "often"}).ok());
      ASSERT_EQ(tensor[0], 2.0f);
    }
    ASSERT_TRUE(reduce_over(engine, kWorldGroup, tensor).ok());
    EXPECT_EQ(tensor[0], 5.0f);
    if (engine.rank() < 2) return;
    EXPECT_LT(switches() - before, 100);
  });
}

TEST(Groups, HaveNamesOfTheirOwnAndOverlap) {
  World world(3);
  world.run([](Engine& engine) {
    const GroupId low = add(engine, {0, 1});
    const GroupId high = add(engine, {1, 2});
    std::vector<float> of_low(9, 1.0f);
    std::vector<float> of_high(9, 10.0f);
    std::vector<float> of_all(9, 100.0f);
    std::vector<Handle> handles;
    const auto submit = [&](GroupId group, std::vector<float>& tensor) {
      auto handle = engine.submit(
          of_group(in_place<float>(OpKind::kAllreduce, {&tensor}, {.name = "the same"}), group));
      ASSERT_TRUE(handle.ok());
      handles.push_back(std::move(handle).value());
    };
    // In another order on each rank.
    if (engine.rank() == 2) submit(high, of_high);
    submit(kWorldGroup, of_all);
    if (engine.rank() == 1) submit(high, of_high);
    if (engine.rank() <= 1) submit(low, of_low);
    ASSERT_TRUE(engine.wait(handles).ok());
    EXPECT_EQ(of_all, std::vector<float>(9, 300.0f));
    EXPECT_EQ(of_low, std::vector<float>(9, engine.rank() <= 1 ? 2.0f : 1.0f));
    EXPECT_EQ(of_high, std::vector<float>(9, engine.rank() >= 1 ? 20.0f : 10.0f));
  });
}

TEST(Groups, MoveRowsByTheMembersOrder) {
  World world(4);
  world.run([](Engine& engine) {
    const GroupId group = add(engine, {1, 3});
    if (engine.rank() % 2 == 0) return;
    const int self = engine.rank() / 2;
    std::vector<float> input(static_cast<std::size_t>(self) + 1, static_cast<float>(engine.rank()));
    std::vector<float> output;
    auto submission = RequestSpec{.name = "rows",
                                  .kind = OpKind::kAllgather,
                                  .group = group,
                                  .tensors = {{DType::kFloat32, {kAnyRows}}}};
    Submission gather;
    gather.spec = std::make_shared<const RequestSpec>(submission);
    gather.rows = {self + 1};
    gather.inputs = {reinterpret_cast<const std::byte*>(input.data())};
    gather.allocate = [&output](std::size_t, std::int64_t rows) -> Result<std::byte*> {
      output.resize(static_cast<std::size_t>(rows));
      return reinterpret_cast<std::byte*>(output.data());
    };
    auto handle = engine.submit(std::move(gather));
    ASSERT_TRUE(engine.wait(handle.value()).ok());
    EXPECT_EQ(output, (std::vector<float>{1, 3, 3}));

    // The root is a rank of the World.
    std::vector<float> sent(5, static_cast<float>(engine.rank()));
    handle = engine.submit(
        of_group(in_place<float>(OpKind::kBroadcast, {&sent}, {.name = "b", .root = 3}), group));
    ASSERT_TRUE(engine.wait(handle.value()).ok());
    EXPECT_EQ(sent, std::vector<float>(5, 3.0f));
  });
}

TEST(Groups, ReduceBucketsInTheArena) {
  World world(3);
  world.run([](Engine& engine) {
    const GroupId group = add(engine, {0, 2});
    if (engine.rank() == 1) return;
    const std::size_t count = 100'000;
    auto arena = engine.allocate_arena(count * sizeof(float));
    ASSERT_TRUE(arena.ok());
    auto* data = reinterpret_cast<float*>(arena.value().data);
    for (int round = 1; round <= 3; ++round) {
      std::fill_n(data, count, static_cast<float>(round * (engine.rank() + 1)));
      auto handle =
          engine.submit(of_group(bucket_in(arena.value(), count, {.name = "bucket"}), group));
      ASSERT_TRUE(handle.ok());
      ASSERT_TRUE(engine.wait(handle.value()).ok());
      EXPECT_EQ(std::vector<float>(data, data + count),
                std::vector<float>(count, static_cast<float>(round * 4)));
    }
  });
}

TEST(Groups, WorkFromSeveralThreadsInAnyOrder) {
  World world(4);
  world.run([](Engine& engine) {
    const GroupId left = add(engine, {0, 1, 2});
    const GroupId right = add(engine, {1, 2, 3});
    std::vector<std::thread> threads;
    for (const GroupId group : {left, right}) {
      if (!engine.group(group)->contains(engine.rank())) continue;
      threads.emplace_back([&engine, group] {
        for (int i = 0; i < 50; ++i) {
          std::vector<float> tensor(100, 1.0f);
          ASSERT_TRUE(reduce_over(engine, group, tensor, {.name = "t"}).ok());
          EXPECT_EQ(tensor.front(), 3.0f);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(Groups, OfOneRankAndOfAllButOneWork) {
  World world(3);
  world.run([](Engine& engine) {
    const GroupId alone = add(engine, {1});
    const GroupId others = add(engine, {0, 2});
    std::vector<float> tensor(7, 3.0f);
    ASSERT_TRUE(reduce_over(engine, engine.rank() == 1 ? alone : others, tensor).ok());
    EXPECT_EQ(tensor.front(), engine.rank() == 1 ? 3.0f : 6.0f);
  });
}

TEST(Groups, AreRefusedWhereTheyAreNotWhatAllMean) {
  World world(3);
  world.run([](Engine& engine) {
    const GroupId group = add(engine, {0, 1});
    const auto twice = engine.add_group({0, 1});
    ASSERT_FALSE(twice.ok());
    EXPECT_NE(twice.error().text.find("unique"), std::string::npos) << twice.error().text;
    EXPECT_FALSE(engine.add_group({0, 1, 2}).ok());
    EXPECT_FALSE(engine.add_group({0, 3}).ok());
    EXPECT_FALSE(engine.add_group({1, 0}).ok());
    EXPECT_FALSE(engine.add_group({}).ok());
    const auto differ =
        engine.add_group(engine.rank() == 0 ? std::vector<Rank>{0} : std::vector<Rank>{1});
    ASSERT_FALSE(differ.ok());
    EXPECT_EQ(differ.error().code, ErrorCode::kMismatch) << differ.error().text;

    std::vector<float> tensor(3, 1.0f);
    const Status foreign = reduce_over(engine, group, tensor);
    EXPECT_EQ(foreign.ok(), engine.rank() != 2);
    if (!foreign.ok()) {
      EXPECT_NE(foreign.error().text.find("rank 2 is not a member of process set"),
                std::string::npos)
          << foreign.error().text;
    }
    EXPECT_FALSE(reduce_over(engine, group + 7, tensor).ok());
    EXPECT_FALSE(engine.remove_group(kWorldGroup).ok());
    EXPECT_FALSE(engine.remove_group(group + 7).ok());
  });
}

TEST(Groups, AreNotRemovedWhileAnOperationIsPending) {
  World world(3);
  world.run([&](Engine& engine) {
    const GroupId group = add(engine, {0, 1});
    std::vector<float> tensor(3, 1.0f);
    std::optional<Handle> handle;
    const auto submit = [&] {
      handle = engine.submit(of_group(in_place<float>(OpKind::kAllreduce, {&tensor}, {}), group))
                   .value();
    };
    if (engine.rank() == 0) submit();
    const Status removed = engine.remove_group(group);
    ASSERT_FALSE(removed.ok());
    EXPECT_NE(removed.error().text.find("allreduce"), std::string::npos) << removed.error().text;
    if (engine.rank() == 1) submit();
    if (handle) {
      ASSERT_TRUE(engine.wait(*handle).ok());
      EXPECT_EQ(tensor.front(), 2.0f);
    }
    EXPECT_TRUE(engine.remove_group(group).ok());
  });
}

// What this process holds.
struct Held {
  std::size_t descriptors = 0;
  std::size_t arena_bytes = 0;    // mapped, all segments of all ranks
  std::size_t private_bytes = 0;  // resident

  static Held now() {
    Held held;
    const std::filesystem::directory_iterator all("/proc/self/fd");
    held.descriptors = static_cast<std::size_t>(std::distance(begin(all), end(all)));
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      std::size_t begin = 0, end = 0;
      if (line.find("/memfd:ciranda") == std::string::npos) continue;
      if (std::sscanf(line.c_str(), "%zx-%zx", &begin, &end) == 2) held.arena_bytes += end - begin;
    }
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      std::size_t kib = 0;
      if (std::sscanf(line.c_str(), "RssAnon: %zu kB", &kib) == 1) held.private_bytes = kib << 10;
    }
    return held;
  }
};

TEST(Groups, LeaveNothingWhenTheyAreRemoved) {
  World world(3);
  Held before, after;
  world.run([&](Engine& engine) {
    for (int i = 0; i < 1000; ++i) {
      const GroupId group = add(engine, {0, 2});
      std::vector<float> tensor(3, 1.0f);
      if (engine.rank() != 1) {
        ASSERT_TRUE(reduce_over(engine, group, tensor, {.name = "x"}).ok());
        EXPECT_EQ(tensor.front(), 2.0f);
      }
      ASSERT_TRUE(engine.remove_group(group).ok());
      EXPECT_EQ(engine.group(group), nullptr);
      if (engine.rank() == 0 && i == 199) before = Held::now();
      if (engine.rank() == 0 && i == 999) after = Held::now();
    }
  });
  EXPECT_LE(after.descriptors, before.descriptors + 2);
  EXPECT_GT(before.arena_bytes, 0u);
  // Whoever is slow to let go of the last one makes the next take other memory.
  EXPECT_LE(after.arena_bytes, 2 * before.arena_bytes);
  // A sanitizer keeps what was freed.
  if (!kUnderAsan && !kUnderTsan) {
    EXPECT_LT(after.private_bytes, before.private_bytes + (std::size_t{256} << 10));
  }
}

constexpr const char* kNeedsAPipe =
    "UBSan, which goes with ASan, looks at memory through a pipe, and there is no descriptor";

// While it lives, this process cannot open anything.
class NoDescriptor {
 public:
  NoDescriptor() {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const int lowest = ::dup(0);
    ::close(lowest);
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(lowest);
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoDescriptor() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
  NoDescriptor(const NoDescriptor&) = delete;
  NoDescriptor& operator=(const NoDescriptor&) = delete;

 private:
  rlimit before_ = {};
};

TEST(Groups, ARankWithoutMemoryForOneIsNamedOnEveryRank) {
  if (kUnderAsan) GTEST_SKIP() << kNeedsAPipe;
  World world(3);
  {
    const NoDescriptor for_memory;
    world.run([](Engine& engine) {
      const auto group = engine.add_group({1, 2});
      ASSERT_FALSE(group.ok());
      EXPECT_EQ(group.error().code, ErrorCode::kSystem);
      EXPECT_EQ(group.error().rank, 1);
      const std::string reason = engine.rank() == 1 ? ": memfd_create: Too many open files" : "";
      EXPECT_EQ(
          group.error().text,
          "add_process_set: rank 1 cannot allocate the memory that the ranks on its host share" +
              reason);
    });
  }
  world.run([](Engine& engine) {
    const GroupId group = add(engine, {1, 2});
    EXPECT_EQ(group, 1u) << "the first one";
    std::vector<float> tensor(3, 1.0f);
    if (engine.rank() != 0) {
      ASSERT_TRUE(reduce_over(engine, group, tensor).ok());
      EXPECT_EQ(tensor.front(), 2.0f);
    }
  });
}

TEST(Groups, ARankThatLeavesEndsItsGroupsAndNoOther) {
  World world(3);
  world.run([](Engine& engine) {
    const GroupId with = add(engine, {1, 2});
    const GroupId without = add(engine, {0, 1});
    if (engine.rank() == 2) return engine.shutdown();
    std::vector<float> tensor(3, 1.0f);
    if (engine.rank() == 1) {
      EXPECT_FALSE(reduce_over(engine, with, tensor).ok());
    }
    EXPECT_TRUE(reduce_over(engine, without, tensor).ok());
    EXPECT_EQ(tensor.front(), 2.0f);
  });
}

// -------------------------------------------------------------------------------------------
// Pairs

Result<Handle> pass(Engine& engine, Pair pair, std::vector<float>& tensor,
                    const std::string& name = "") {
  return engine.submit(in_place<float>(OpKind::kBroadcast, {&tensor},
                                       {.name = name, .group = pair_id(pair), .root = pair.from}));
}

// Each rank sends to all others and receives from them, at a time, and again.
TEST(Pairs, WorkWithoutAgreementInBothDirections) {
  World world(3);
  world.run([](Engine& engine) {
    for (const std::size_t count : {0u, 1u, 5u, 4097u, 700'001u}) {
      std::vector<Handle> handles;
      std::vector<std::vector<float>> tensors(9);
      for (Rank from = 0; from < 3; ++from) {
        for (Rank to = 0; to < 3; ++to) {
          if (from == to || (from != engine.rank() && to != engine.rank())) continue;
          auto& tensor = tensors[static_cast<std::size_t>(3 * from + to)];
          const auto sent = static_cast<float>(10 * from + to);
          tensor.assign(count, from == engine.rank() ? sent : -1.0F);
          auto handle = pass(engine, {.from = from, .to = to}, tensor);
          ASSERT_TRUE(handle.ok()) << handle.error().text;
          handles.push_back(std::move(handle).value());
        }
      }
      ASSERT_TRUE(engine.wait(handles).ok());
      for (Rank from = 0; from < 3; ++from) {
        if (from == engine.rank()) continue;
        const auto sent = static_cast<float>(10 * from + engine.rank());
        EXPECT_EQ(tensors[static_cast<std::size_t>(3 * from + engine.rank())],
                  std::vector<float>(count, sent));
      }
    }
  });
}

TEST(Pairs, KeepTheOrderOfWhatWasSent) {
  World world(2);
  world.run([](Engine& engine) {
    std::vector<std::vector<float>> tensors(20, std::vector<float>(100));
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (engine.rank() == 1) tensors[i].assign(100, static_cast<float>(i));
      handles.push_back(pass(engine, {.from = 1, .to = 0}, tensors[i]).value());
    }
    ASSERT_TRUE(engine.wait(handles).ok());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(tensors[i].back(), static_cast<float>(i));
    }
  });
}

TEST(Pairs, AreForTheirTwoRanksAlone) {
  World world(3);
  world.run([](Engine& engine) {
    std::vector<float> tensor(3, 1.0F);
    const Pair others = {.from = (engine.rank() + 1) % 3, .to = (engine.rank() + 2) % 3};
    const auto foreign = pass(engine, others, tensor);
    ASSERT_FALSE(foreign.ok());
    EXPECT_NE(foreign.error().text.find("cannot send a message from rank"), std::string::npos)
        << foreign.error().text;
    EXPECT_FALSE(pass(engine, {.from = engine.rank(), .to = 3}, tensor).ok());
    EXPECT_FALSE(pass(engine, {.from = engine.rank(), .to = engine.rank()}, tensor).ok());
    EXPECT_FALSE(engine.remove_group(pair_id({.from = 0, .to = 1})).ok());
  });
}

TEST(Pairs, ADisagreementConcernsItsTwoRanksAlone) {
  World world(3);
  world.run([](Engine& engine) {
    if (engine.rank() < 2) {
      std::vector<float> tensor(engine.rank() == 0 ? 3 : 4);
      const Status status =
          engine.wait(pass(engine, {.from = 0, .to = 1}, tensor, "activations").value());
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
      EXPECT_NE(status.error().text.find("'activations' from rank 0 to rank 1: shapes differ"),
                std::string::npos)
          << status.error().text;
    }
    std::vector<float> ones(5, 1.0F);
    ASSERT_TRUE(engine.wait(allreduce(engine, ones).value()).ok());
    EXPECT_EQ(ones.front(), 3.0F);
  });
}

TEST(Pairs, ARankThatLeavesEndsItsMessages) {
  World world(3);
  world.run([](Engine& engine) {
    if (engine.rank() == 2) return engine.shutdown();
    std::vector<float> tensor(3, 1.0F);
    const Pair with = {.from = 2, .to = engine.rank()};
    EXPECT_FALSE(engine.wait(pass(engine, with, tensor).value()).ok());
    const Pair without = {.from = 0, .to = 1};
    EXPECT_TRUE(engine.wait(pass(engine, without, tensor).value()).ok());
  });
}

TEST(Pairs, ARankWithoutMemoryIsNamedOnBoth) {
  if (kUnderAsan) GTEST_SKIP() << kNeedsAPipe;
  World world(2);
  const Pair pair = {.from = 1, .to = 0};
  {
    const NoDescriptor for_memory;
    world.run([pair](Engine& engine) {
      std::vector<float> tensor(3, 1.0F);
      const Status status = engine.wait(pass(engine, pair, tensor).value());
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().code, ErrorCode::kSystem);
      EXPECT_EQ(status.error().rank, 0);
    });
  }
  world.run([pair](Engine& engine) {
    std::vector<float> tensor(3, static_cast<float>(engine.rank()));
    EXPECT_TRUE(engine.wait(pass(engine, pair, tensor).value()).ok());
    EXPECT_EQ(tensor.front(), 1.0F);
  });
}

// -------------------------------------------------------------------------------------------
// join

TEST(Join, JoinedRanksAddZeros) {
  World world(3);
  world.run([](Engine& engine) {
    // Rank 0 has 2 batches, rank 1 has 4, rank 2 has 6.
    const int batches = 2 * (engine.rank() + 1);
    for (int batch = 0; batch < batches; ++batch) {
      const auto present = static_cast<float>(batch < 2 ? 3 : batch < 4 ? 2 : 1);
      std::vector<float> sum(10'000, 1.0f);
      ASSERT_TRUE(reduce_over(engine, kWorldGroup, sum, {.name = "sum"}).ok());
      EXPECT_EQ(sum, std::vector<float>(10'000, present)) << batch;
      std::vector<float> average(5, 3.0f);
      ASSERT_TRUE(
          reduce_over(engine, kWorldGroup, average, {.name = "average", .op = ReduceOp::kAverage})
              .ok());
      EXPECT_EQ(average, std::vector<float>(5, present));
    }
    const auto last = engine.join();
    ASSERT_TRUE(last.ok());
    EXPECT_EQ(last.value(), 2);
    std::vector<float> all(5, 1.0f);
    ASSERT_TRUE(reduce_over(engine, kWorldGroup, all).ok());
    EXPECT_EQ(all.front(), 3.0f);
  });
}

// Gloo knows nothing of reducing without a rank, as shared memory does: it gets zeros of it.
TEST(Join, GloosBucketsGoOn) {
  if (const Status available = Backends::available(BackendId::kGloo); !available) {
    CIRANDA_SKIP(available.error().text);
  }
  World world(2);
  world.run([](Engine& engine) {
    auto arena = engine.allocate_arena(4000);
    const auto submit = [&] {
      Submission bucket = bucket_in(arena.value(), 1000, {.name = "bucket"});
      RequestSpec spec = *bucket.spec;
      spec.backend = BackendId::kGloo;
      bucket.spec = std::make_shared<const RequestSpec>(std::move(spec));
      return engine.wait(engine.submit(std::move(bucket)).value());
    };
    ASSERT_TRUE(submit().ok());  // Gloo has been started
    if (engine.rank() == 0) {
      auto* const floats = reinterpret_cast<float*>(arena.value().data);
      std::fill_n(floats, 1000, 3.0F);
      const Status alone = submit();
      ASSERT_TRUE(alone.ok()) << alone.error().text;
      EXPECT_EQ(floats[0], 3.0F);
      EXPECT_EQ(floats[999], 3.0F);
    }
    ASSERT_TRUE(engine.join().ok());
    EXPECT_TRUE(submit().ok());
  });
}

TEST(Join, UnnamedOperationsMeetAgainAfterwards) {
  World world(3);
  world.run([](Engine& engine) {
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (int batch = 0; batch <= (engine.rank() + epoch) % 3; ++batch) {
        std::vector<float> tensor(5, 1.0f);
        ASSERT_TRUE(reduce_over(engine, kWorldGroup, tensor).ok());
      }
      ASSERT_TRUE(engine.join().ok());
      std::vector<float> all(5, 1.0f);
      ASSERT_TRUE(reduce_over(engine, kWorldGroup, all).ok());
      EXPECT_EQ(all.front(), 3.0f);
    }
  });
}

// With room for one known operation each is asked for by a number that may be another's by then.
TEST(Join, ComesAfterWhatHasToBeAskedForAgain) {
  World world(3, {.pace = {.spin_ns = 0}, .cache_entries = 1});
  world.run([](Engine& engine) {
    for (int epoch = 0; epoch < 50; ++epoch) {
      std::vector<std::vector<float>> tensors(6, std::vector<float>(5, 1.0f));
      std::vector<Handle> handles;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const std::size_t which = engine.rank() == 1 ? tensors.size() - 1 - i : i;
        auto handle = allreduce(engine, tensors[which], {.name = std::to_string(which)});
        ASSERT_TRUE(handle.ok());
        handles.push_back(std::move(handle).value());
      }
      ASSERT_TRUE(engine.join().ok());
      ASSERT_TRUE(engine.wait(handles).ok());
      for (const auto& tensor : tensors) EXPECT_EQ(tensor.front(), 3.0f);
    }
  });
}

TEST(Join, BucketsAreReducedByThoseWhoAreThere) {
  World world(3);
  world.run([](Engine& engine) {
    constexpr std::size_t kCount = 2'000'000;
    auto arena = engine.allocate_arena(kCount * sizeof(float));
    auto* data = reinterpret_cast<float*>(arena.value().data);
    const auto own = static_cast<float>(3 + 3 * engine.rank() * engine.rank());  // 3, 6, 15
    const auto reduce = [&](float average) {
      std::fill_n(data, kCount, own);
      auto handle = engine.submit(
          bucket_in(arena.value(), kCount, {.name = "bucket", .op = ReduceOp::kAverage}));
      ASSERT_TRUE(engine.wait(handle.value()).ok());
      // At once: others may still be reducing what this rank takes for done.
      for (std::size_t i = 0; i < kCount; i += kCount / 50) ASSERT_EQ(data[i], average) << i;
    };
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (int batch = 0; batch < 5 && engine.rank() != 1; ++batch) reduce(6.0f);
      ASSERT_TRUE(engine.join().ok());
      for (int batch = 0; batch < 3; ++batch) reduce(8.0f);
    }
  });
}

TEST(Join, WhatHasNoZeroIsAnErrorAndTheJobGoesOn) {
  World world(2);
  world.run([](Engine& engine) {
    if (engine.rank() == 0) {
      std::vector<float> tensor(3, 1.0f);
      const Status least =
          reduce_over(engine, kWorldGroup, tensor, {.name = "m", .op = ReduceOp::kMin});
      ASSERT_FALSE(least.ok());
      EXPECT_NE(least.error().text.find("joined"), std::string::npos) << least.error().text;
      std::vector<float> output;
      auto handle =
          gather_like<float>(engine, OpKind::kAllgather, tensor, {3}, output, {.name = "g"});
      EXPECT_FALSE(engine.wait(handle.value()).ok());
    }
    const auto last = engine.join();
    ASSERT_TRUE(last.ok());
    EXPECT_EQ(last.value(), 0);
  });
}

TEST(Join, CountsInEveryGroup) {
  World world(3);
  world.run([](Engine& engine) {
    const GroupId group = add(engine, {0, 1});
    if (engine.rank() == 0) {
      std::vector<float> tensor(3, 4.0f);
      ASSERT_TRUE(reduce_over(engine, group, tensor, {.op = ReduceOp::kAverage}).ok());
      EXPECT_EQ(tensor.front(), 2.0f);
    }
    ASSERT_TRUE(engine.join().ok());
  });
}

}  // namespace
}  // namespace ciranda::testing
