// Real Gloo over loopback: ranks are threads. What could break: sizes, offsets and scales on the
// way to the library, and everything that blocks in it.
#include <gtest/gtest.h>
#include <malloc.h>

#include <chrono>
#include <filesystem>
#include <numeric>
#include <random>
#include <thread>

#include "core/backend/gloo/gloo.h"
#include "core/kernels/reduce.h"
#include "required.h"
#include "runtime/hosts.h"
#include "runtime/world.h"

namespace ciranda::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

Options on_gloo(Options options = {}) {
  options.backend = BackendId::kGloo;
  return options;
}

class GlooOnRanks : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (const Status status = Backends::available(BackendId::kGloo); !status) {
      CIRANDA_SKIP(status.error().text);
    }
  }
};
class Gloo : public GlooOnRanks {};
INSTANTIATE_TEST_SUITE_P(Ranks, GlooOnRanks, ::testing::Values(1, 2, 3, 4, 5));
INSTANTIATE_TEST_SUITE_P(Two, Gloo, ::testing::Values(2));

void wait(Engine& engine, const Result<Handle>& handle) {
  ASSERT_TRUE(handle.ok()) << handle.error().text;
  const Status status = engine.wait(handle.value());
  ASSERT_TRUE(status.ok()) << status.error().text;
}

// `count` elements of a small whole number, which every dtype has.
std::vector<std::byte> elements(DType dtype, std::size_t count, int value) {
  std::vector<std::byte> bytes(count * dtype_bytes(dtype));
  if (is_floating(dtype)) {
    const std::vector<float> floats(count, static_cast<float>(value));
    kernels::cast(DType::kFloat32, reinterpret_cast<const std::byte*>(floats.data()), dtype,
                  bytes.data(), count);
  } else {
    for (std::size_t i = 0; i < count; ++i) bytes[i * dtype_bytes(dtype)] = std::byte(value);
  }
  return bytes;
}

// A reduction of raw memory by Gloo; allreduce or reducescatter.
Submission reduction(OpKind kind, DType dtype, ReduceOp op, const std::vector<std::byte>& input,
                     std::vector<std::byte>& output) {
  const auto count = static_cast<std::int64_t>(input.size() / dtype_bytes(dtype));
  Submission submission;
  submission.spec = std::make_shared<const RequestSpec>(RequestSpec{.name = unnamed(kind),
                                                                    .kind = kind,
                                                                    .op = op,
                                                                    .backend = BackendId::kGloo,
                                                                    .tensors = {{dtype, {count}}}});
  submission.inputs = {input.data()};
  submission.outputs = {output.data()};
  submission.allocate = [&output, dtype](std::size_t, std::int64_t rows) -> Result<std::byte*> {
    output.resize(static_cast<std::size_t>(rows) * dtype_bytes(dtype));
    return output.data();
  };
  return submission;
}

TEST_P(GlooOnRanks, AllreduceSumsTensorsOfAnySizeInPlace) {
  World world(GetParam());
  const auto n = static_cast<float>(world.size());
  for (const std::size_t count : {0u, 1u, 7u, 1000u, 70'000u, 1'500'003u}) {
    world.run([&](Engine& engine) {
      std::vector<float> tensor(count, static_cast<float>(engine.rank() + 1));
      wait(engine, allreduce(engine, tensor, on_gloo()));
      EXPECT_EQ(tensor, std::vector<float>(count, n * (n + 1) / 2)) << count;
    });
  }
}

TEST_P(GlooOnRanks, EveryDtypeAndOpIsReducedOutOfPlace) {
  World world(GetParam());
  const int n = world.size();
  const int factorial = std::array{1, 1, 2, 6, 24, 120}[static_cast<std::size_t>(n)];
  const std::pair<ReduceOp, int> expected[] = {{ReduceOp::kSum, n * (n + 1) / 2},
                                               {ReduceOp::kAverage, (n + 1) / 2},
                                               {ReduceOp::kMin, 1},
                                               {ReduceOp::kMax, n},
                                               {ReduceOp::kProduct, factorial}};
  world.run([&](Engine& engine) {
    for (const OpKind kind : {OpKind::kAllreduce, OpKind::kReducescatter}) {
      for (int d = 0; d < kDTypeCount; ++d) {
        const auto dtype = static_cast<DType>(d);
        if (is_float8(dtype)) continue;  // the CPU only moves it
        for (const auto& [op, value] : expected) {
          if (op == ReduceOp::kAverage && n % 2 == 0) continue;  // no whole number
          const auto input = elements(dtype, 1001, engine.rank() + 1);
          const auto before = input;
          std::vector<std::byte> output(input.size());
          wait(engine, engine.submit(reduction(kind, dtype, op, input, output)));
          EXPECT_EQ(output, elements(dtype, output.size() / dtype_bytes(dtype), value))
              << op_kind_name(kind) << dtype_name(dtype) << reduce_op_name(op);
          EXPECT_EQ(input, before);
        }
      }
    }
  });
}

TEST_P(GlooOnRanks, ScalesBeforeAndAfter) {
  World world(GetParam());
  const auto n = static_cast<float>(world.size());
  world.run([&](Engine& engine) {
    std::vector<float> one(1000, 3.0F);
    std::vector<float> other(10, 5.0F);
    const Options options = on_gloo({.op = ReduceOp::kSum, .prescale = 2.0, .postscale = 0.25});
    wait(engine, engine.submit(in_place<float>(OpKind::kAllreduce, {&one}, options)));
    EXPECT_EQ(one, std::vector<float>(1000, 1.5F * n));
    wait(engine, engine.submit(in_place<float>(OpKind::kAllreduce, {&one, &other}, options)));
    EXPECT_EQ(one, std::vector<float>(1000, 0.75F * n * n));
    EXPECT_EQ(other, std::vector<float>(10, 2.5F * n));
  });
}

TEST_P(GlooOnRanks, AllRanksHaveTheSameBits) {
  World world(GetParam());
  std::vector<std::vector<float>> results(static_cast<std::size_t>(world.size()));
  world.run([&](Engine& engine) {
    std::vector<float>& tensor = results[static_cast<std::size_t>(engine.rank())];
    std::mt19937 random(static_cast<unsigned>(engine.rank()));
    std::normal_distribution<float> normal;
    for (int i = 0; i < 100'001; ++i) tensor.push_back(normal(random));
    wait(engine, allreduce(engine, tensor, on_gloo({.op = ReduceOp::kAverage})));
  });
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
}

TEST_P(GlooOnRanks, GroupsAreReducedAndBroadcastWhole) {
  World world(GetParam());
  const auto n = static_cast<float>(world.size());
  world.run([&](Engine& engine) {
    std::vector<float> a(10, 1.0F), b(100'000, 2.0F), c;
    wait(engine, engine.submit(in_place<float>(OpKind::kAllreduce, {&a, &b, &c}, on_gloo())));
    EXPECT_EQ(a, std::vector<float>(10, n));
    EXPECT_EQ(b, std::vector<float>(100'000, 2 * n));
    a.assign(10, static_cast<float>(engine.rank()));
    b.assign(100'000, static_cast<float>(2 * engine.rank()));
    const Options from_last = on_gloo({.root = world.size() - 1});
    wait(engine, engine.submit(in_place<float>(OpKind::kBroadcast, {&a, &b}, from_last)));
    EXPECT_EQ(a, std::vector<float>(10, n - 1));
    EXPECT_EQ(b, std::vector<float>(100'000, 2 * (n - 1)));
    a.assign(10, static_cast<float>(engine.rank()));
    wait(engine, engine.submit(in_place<float>(OpKind::kBroadcast, {&a}, from_last)));
    EXPECT_EQ(a, std::vector<float>(10, n - 1));
  });
}

TEST_P(GlooOnRanks, AllgatherConcatenatesUnequalRows) {
  World world(GetParam());
  world.run([&](Engine& engine) {
    for (const std::size_t unit : {0u, 1u, 1000u, 300'000u}) {
      const auto rows_of = [&](int rank) { return unit * static_cast<std::size_t>(rank); };
      std::vector<float> input(rows_of(engine.rank()), static_cast<float>(engine.rank()));
      std::vector<float> output, expected;
      wait(engine, gather_like(engine, OpKind::kAllgather, input,
                               {static_cast<std::int64_t>(input.size())}, output, on_gloo()));
      for (int rank = 0; rank < world.size(); ++rank) {
        expected.insert(expected.end(), rows_of(rank), static_cast<float>(rank));
      }
      EXPECT_EQ(output, expected);
    }
  });
}

TEST_P(GlooOnRanks, AlltoallSendsEachItsRows) {
  World world(GetParam());
  world.run([&](Engine& engine) {
    // From s to d go s + 2 d rows, all of which say s; none from 0 to 0.
    std::vector<float> input, output, expected;
    std::vector<std::int64_t> rows;
    for (int to = 0; to < world.size(); ++to) {
      rows.push_back(engine.rank() + 2 * to);
      input.insert(input.end(), static_cast<std::size_t>(rows.back()),
                   static_cast<float>(engine.rank()));
    }
    for (int from = 0; from < world.size(); ++from) {
      expected.insert(expected.end(), static_cast<std::size_t>(from + 2 * engine.rank()),
                      static_cast<float>(from));
    }
    wait(engine, gather_like(engine, OpKind::kAlltoall, input, rows, output, on_gloo()));
    EXPECT_EQ(output, expected);
  });
}

TEST_P(GlooOnRanks, ABucketInTheArenaIsReducedWhereItLies) {
  World world(GetParam());
  const auto n = static_cast<float>(world.size());
  world.run([&](Engine& engine) {
    auto arena = engine.allocate_arena(5000 * sizeof(float));
    ASSERT_TRUE(arena.ok());
    auto* values = reinterpret_cast<float*>(arena.value().data);
    std::fill_n(values, 5000, static_cast<float>(engine.rank() + 1));
    Submission submission;
    submission.spec =
        std::make_shared<const RequestSpec>(RequestSpec{.name = "bucket",
                                                        .op = ReduceOp::kAverage,
                                                        .in_arena = true,
                                                        .backend = BackendId::kGloo,
                                                        .tensors = {{DType::kFloat32, {5000}}}});
    submission.arena = arena.value().ref;
    submission.arena_bytes = 5000 * sizeof(float);
    wait(engine, engine.submit(std::move(submission)));
    EXPECT_EQ(std::vector<float>(values, values + 5000), std::vector<float>(5000, (n + 1) / 2));
  });
}

TEST_P(GlooOnRanks, RunsBesideTheNativeBackend) {
  World world(GetParam());
  const auto n = static_cast<float>(world.size());
  world.run([&](Engine& engine) {
    std::vector<std::vector<float>> tensors(20, std::vector<float>(3000, 1.0F));
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      Options options{.name = "t" + std::to_string(i)};
      if (i % 2 == 0) options = on_gloo(options);
      auto handle = allreduce(engine, tensors[i], options);
      ASSERT_TRUE(handle.ok());
      handles.push_back(handle.value());
    }
    ASSERT_TRUE(engine.wait(handles).ok());
    for (const auto& tensor : tensors) EXPECT_EQ(tensor, std::vector<float>(3000, n));
  });
}

TEST_P(GlooOnRanks, TwoWorldsDoNotMeet) {
  World one(GetParam());
  World other(GetParam());
  const auto sum_in = [](World& world, float value) {
    world.run([&](Engine& engine) {
      for (int i = 0; i < 20; ++i) {
        std::vector<float> tensor(2000, value);
        wait(engine, allreduce(engine, tensor, on_gloo()));
        EXPECT_EQ(tensor, std::vector<float>(2000, value * static_cast<float>(world.size())));
      }
    });
  };
  std::thread beside([&] { sum_in(other, 5.0F); });
  sum_in(one, 1.0F);
  beside.join();
}

TEST_P(Gloo, ConnectsTheRanksOfSeveralHosts) {
  World world = several_hosts({2, 1, 2}, {.spin_ns = 20'000});
  world.run([&](Engine& engine) {
    for (int i = 0; i < 5; ++i) {
      std::vector<float> tensor(50'000, static_cast<float>(engine.rank()));
      wait(engine, allreduce(engine, tensor, on_gloo()));
      EXPECT_EQ(tensor, std::vector<float>(50'000, 10.0F));
    }
  });
}

TEST_P(Gloo, ARankThatOnlySubmittedTakesPart) {
  for (const bool hosts : {false, true}) {
    World world = hosts ? several_hosts({2, 2}, {.spin_ns = 20'000}) : World(4);
    std::vector<std::vector<float>> tensors(4, std::vector<float>(1000, 1.0F));
    std::vector<Handle> handles;
    for (int rank = 0; rank < 4; ++rank) {
      auto handle = allreduce(world[rank], tensors[static_cast<std::size_t>(rank)], on_gloo());
      ASSERT_TRUE(handle.ok());
      handles.push_back(handle.value());
    }
    ASSERT_TRUE(world[0].wait(handles[0]).ok());
    EXPECT_EQ(tensors[0], std::vector<float>(1000, 4.0F));
    for (int rank = 1; rank < 4; ++rank) {
      ASSERT_TRUE(world[rank].wait(handles[static_cast<std::size_t>(rank)]).ok());
    }
  }
}

// Gloo's thread is done when nobody waits any more: it must not rely on who has just left.
TEST_P(Gloo, WhatNobodyWaitsForIsDoneAfterAWaitToo) {
  World world(GetParam(), {.overlap = true, .spin_ns = 20'000});
  world.run([](Engine& engine) {
    for (int step = 0; step < 200; ++step) {
      std::vector<float> small(1, 1.0F);
      std::vector<float> large(3000, 1.0F);
      auto first = allreduce(engine, small, on_gloo());
      auto second = allreduce(engine, large, on_gloo());
      wait(engine, first);
      ASSERT_TRUE(second.ok());
      const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (!second.value()->done() && std::chrono::steady_clock::now() < patience) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      ASSERT_TRUE(second.value()->done()) << step;
    }
  });
}

// A cube up to 16 MiB, a ring beyond.
TEST_P(Gloo, TwoRanksReduceMoreThanTheyHalve) {
  World world(GetParam());
  world.run([](Engine& engine) {
    for (const std::size_t count : {(4u << 20), (4u << 20) + 1}) {
      std::vector<float> tensor(count, static_cast<float>(engine.rank() + 1));
      wait(engine, allreduce(engine, tensor, on_gloo()));
      ASSERT_EQ(tensor, std::vector<float>(count, 3.0F));
    }
  });
}

TEST_P(Gloo, RanksThatChooseDifferentBackendsAreTold) {
  World world(2);
  world.run([&](Engine& engine) {
    std::vector<float> tensor(10, 1.0F);
    const auto backend = engine.rank() == 0 ? BackendId::kNative : BackendId::kGloo;
    auto handle = allreduce(engine, tensor, {.name = "w", .backend = backend});
    ASSERT_TRUE(handle.ok());
    const Status status = engine.wait(handle.value());
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
    EXPECT_NE(status.error().text.find("rank 0 has backend auto, rank 1 has backend gloo"),
              std::string::npos)
        << status.error().text;
  });
}

TEST_P(Gloo, AFailureEndsWhatRuns) {
  World world(3);
  const std::size_t count = 30'000'000;  // for longer than it takes to fail
  std::vector<std::vector<float>> tensors(3, std::vector<float>(count, 1.0F));
  std::vector<Handle> handles;
  for (int rank = 0; rank < 3; ++rank) {
    auto handle = allreduce(world[rank], tensors[static_cast<std::size_t>(rank)], on_gloo());
    ASSERT_TRUE(handle.ok());
    handles.push_back(handle.value());
  }
  std::thread failing([&] {
    std::this_thread::sleep_for(milliseconds(50));
    world[1].abort("rank 1 gave up");
  });
  const Status status = world[0].wait(handles[0]);
  failing.join();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().text.find("rank 1 gave up"), std::string::npos) << status.error().text;
}

TEST_P(Gloo, LeavesNothingBehindAHundredTimes) {
  const auto entries = [](const char* folder) {
    const std::filesystem::directory_iterator all(folder);
    return std::distance(std::filesystem::begin(all), std::filesystem::end(all));
  };
  const auto once = [] {
    World world(2);
    world.run([](Engine& engine) {
      std::vector<float> tensor(100, 1.0F);
      wait(engine, allreduce(engine, tensor, on_gloo()));
    });
  };
  for (int warm_up = 0; warm_up < 3; ++warm_up) once();
  const auto threads = entries("/proc/self/task");
  const auto descriptors = entries("/proc/self/fd");
  const std::size_t memory = ::mallinfo2().uordblks;
  for (int i = 0; i < 100; ++i) once();
  EXPECT_EQ(entries("/proc/self/task"), threads);
  EXPECT_EQ(entries("/proc/self/fd"), descriptors);
  // What malloc itself keeps for later grows to 30 KB within 400 times, and not beyond.
  EXPECT_LT(::mallinfo2().uordblks, memory + 65'536);
}

// ------------------------------------------------------------------------------------------------
// Backends without engines, so that one can come late, or never

// All ranks' exchange: done when each has given its part.
struct Meeting {
  explicit Meeting(std::size_t size) : parts(size) {}
  bool complete() const {
    return std::none_of(parts.begin(), parts.end(), [](const auto& part) { return part.empty(); });
  }
  std::vector<std::vector<std::byte>> parts;
};

class Gathering final : public Exchange {
 public:
  explicit Gathering(Meeting& meeting) : meeting_(meeting) {}
  bool done() const override { return meeting_.complete(); }
  Result<std::vector<std::vector<std::byte>>> result() const override { return meeting_.parts; }

 private:
  Meeting& meeting_;
};

class GlooAlone : public GlooOnRanks {
 protected:
  void SetUp() override {
    GlooOnRanks::SetUp();
    for (int rank = 0; rank < GetParam(); ++rank) {
      if (IsSkipped()) return;
      ranks_.push_back(std::make_unique<Member>());
      ranks_.back()->backend =
          make_gloo({.rank = rank,
                     .size = GetParam(),
                     .local_rank = rank,
                     .local_size = GetParam(),
                     .address = "127.0.0.1",
                     .exchange =
                         [this, rank](const std::string&, std::vector<std::byte> mine) {
                           meeting_.parts[static_cast<std::size_t>(rank)] = std::move(mine);
                           return std::make_unique<Gathering>(meeting_);
                         },
                     .wake = [] {}});
    }
  }

  struct Member {
    std::unique_ptr<Backend> backend;
    std::vector<float> tensor = std::vector<float>(300'000, 1.0F);
    std::vector<Status> done;
  };

  void start(Member& member, OpKind kind = OpKind::kAllreduce) {
    auto* data = reinterpret_cast<std::byte*>(member.tensor.data());
    const std::size_t bytes = member.tensor.size() * sizeof(float);
    Execution execution{.op = {.kind = kind, .root = 0, .backend = BackendId::kGloo},
                        .buffers = {{data, data, bytes, bytes}}};
    execution.done = [&member](const Status& status, const auto&) {
      member.done.push_back(status);
    };
    member.backend->start(std::move(execution));
  }

  template <typename Fn>
  bool until(Fn reached) {
    const auto give_up = steady_clock::now() + milliseconds(10'000);
    while (!reached() && steady_clock::now() < give_up) {
      for (auto& member : ranks_) member->backend->advance();
      std::this_thread::sleep_for(milliseconds(1));
    }
    return reached();
  }

  // Aborts rank 0, which must not wait for anybody.
  void abort_first() {
    const auto begin = steady_clock::now();
    ranks_[0]->backend->abort({.code = ErrorCode::kRankLost, .text = "gone"});
    EXPECT_LT(steady_clock::now() - begin, milliseconds(1000));
    EXPECT_TRUE(ranks_[0]->backend->idle());
    for (const Status& status : ranks_[0]->done) EXPECT_EQ(status.error().text, "gone");
  }

  Meeting meeting_{static_cast<std::size_t>(GetParam())};
  std::vector<std::unique_ptr<Member>> ranks_;
};
INSTANTIATE_TEST_SUITE_P(Ranks, GlooAlone, ::testing::Values(2, 4));

TEST_P(GlooAlone, NothingIsDoneBeforeAllHaveBegun) {
  start(*ranks_[0]);
  EXPECT_FALSE(ranks_[0]->backend->idle());
  for (int i = 0; i < 20; ++i) ranks_[0]->backend->advance();
  EXPECT_TRUE(ranks_[0]->done.empty());
  std::vector<Rank> blockers;
  ranks_[0]->backend->blocked_on(blockers);
  EXPECT_EQ(blockers.size(), ranks_.size() - 1);
  for (std::size_t rank = 1; rank < ranks_.size(); ++rank) start(*ranks_[rank]);
  ASSERT_TRUE(until([&] { return ranks_[0]->backend->idle(); }));
  EXPECT_TRUE(ranks_[0]->done.at(0).ok());
  EXPECT_EQ(ranks_[0]->tensor[0], static_cast<float>(GetParam()));
}

TEST_P(GlooAlone, IsAbortedBeforeTheOthersAreKnown) {
  start(*ranks_[0]);
  abort_first();
  EXPECT_EQ(ranks_[0]->done.size(), 1u);
}

// Of two ranks that connect, one calls and one waits; which, the addresses say.
TEST_P(GlooAlone, IsAbortedWhileTheOthersDoNotConnect) {
  for (auto& member : ranks_) start(*member);
  ranks_[0]->backend->advance();
  std::this_thread::sleep_for(milliseconds(50));
  abort_first();
  EXPECT_EQ(ranks_[0]->done.size(), 1u);
}

TEST_P(GlooAlone, IsAbortedWhileARankDoesNotCome) {
  for (auto& member : ranks_) start(*member);
  ASSERT_TRUE(until([&] { return ranks_[0]->done.size() == 1; }));
  start(*ranks_[0]);
  start(*ranks_[0], OpKind::kBroadcast);
  std::this_thread::sleep_for(milliseconds(50));
  ranks_[0]->done.clear();
  abort_first();
  EXPECT_EQ(ranks_[0]->done.size(), 2u);
}

TEST_P(GlooAlone, ALostRankIsNamed) {
  for (auto& member : ranks_) start(*member);
  ASSERT_TRUE(until([&] {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const auto& member) { return member->backend->idle(); });
  }));
  ranks_.erase(ranks_.begin() + 1);
  for (auto& member : ranks_) start(*member);
  const Error* broken = nullptr;
  ASSERT_TRUE(until([&] {
    for (auto& member : ranks_) {
      if (broken == nullptr) broken = member->backend->broken();
    }
    return broken != nullptr;
  }));
  EXPECT_EQ(broken->code, ErrorCode::kRankLost);
  EXPECT_EQ(broken->rank, 1) << broken->text;
  EXPECT_EQ(broken->text.rfind("Gloo lost rank 1: ", 0), 0u) << broken->text;
}

}  // namespace
}  // namespace ciranda::testing
