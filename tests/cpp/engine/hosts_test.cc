// Ranks on several hosts: breaks when an order, a sum or a failure does not cross a connection.
#include "engine/hosts.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>
#include <ostream>
#include <string>
#include <thread>

#include "core/plan/cost.h"
#include "plan/rounded_sum.h"

namespace ciranda::testing {
namespace {

struct Layout {
  std::vector<int> ranks_of_hosts;
  int streams = 1;
  std::uint64_t latency_ns = 30'000;  // large: short messages, 0: ring
  bool tls = false;
};
std::string name_of(const Layout& layout) {
  std::string name;
  if (layout.ranks_of_hosts.size() > 4) {
    name = std::to_string(layout.ranks_of_hosts.size()) + "hosts_";
  } else {
    for (const int ranks : layout.ranks_of_hosts) name += std::to_string(ranks) + "_";
  }
  return name + std::to_string(layout.streams) + (layout.latency_ns > 0 ? "short" : "ring") +
         (layout.tls ? "_tls" : "");
}
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << name_of(layout);
}

// This rank's gradients in a bucket of their own.
struct ArenaFloats {
  ArenaFloats(Engine& engine, std::size_t floats)
      : buffer(engine.allocate_arena(floats * sizeof(float)).value()), count(floats) {}
  float* data() const { return reinterpret_cast<float*>(buffer.data); }
  Status average(Engine& engine, std::optional<DType> wire_dtype = {},
                 GroupId group = kWorldGroup) const {
    auto handle = engine.submit(bucket_in(
        buffer, count,
        {.name = "bucket", .group = group, .op = ReduceOp::kAverage, .wire_dtype = wire_dtype}));
    return handle.ok() ? engine.wait(handle.value()) : handle.error();
  }
  // A shared step that adds 1 to the buckets of those who are there.
  Handle add_one(Engine& engine) const {
    Submission submission = bucket_in(buffer, count, {.name = "step"}, "add one");
    submission.work = [](std::uint64_t begin, std::uint64_t bytes,
                         std::span<std::byte* const> arena) {
      for (std::byte* rank : arena) {
        auto* piece = reinterpret_cast<float*>(rank + begin);
        for (std::size_t i = 0; i < bytes / sizeof(float); ++i) piece[i] += 1.0F;
      }
    };
    return engine.submit(std::move(submission)).value();
  }
  ArenaBuffer buffer;
  std::size_t count;
};

class SeveralHosts : public ::testing::TestWithParam<Layout> {
 protected:
  static RingOptions ring() {
    RingOptions ring;
    ring.link.latency_ns = GetParam().latency_ns;
    ring.stage_bytes_max = 65'536;  // several rounds
    ring.grain = {.channels = GetParam().streams, .stripe_bytes_min = 4096, .segment_bytes = 4096};
    ring.streams_max = GetParam().streams + 1;
    return ring;
  }
  static World make() {
    EngineOptions options{.pace = {.spin_ns = 20'000}};
    options.ring = ring();
    return several_hosts(GetParam().ranks_of_hosts, options, GetParam().tls);
  }

  // What averaging with 16-bit messages has to give, if `participants` exchange these numbers.
  static std::vector<float> rounded_average(DType wire_dtype,
                                            const std::vector<std::vector<float>>& participants,
                                            std::size_t ranks) {
    const Algorithm algorithm =
        choose_algorithm({.participants = static_cast<int>(participants.size()),
                          .payload_bytes = participants[0].size() * sizeof(float),
                          .narrowing = 2},
                         ring().link, ring().grain);
    return RoundedSum(wire_dtype, 1.0 / static_cast<double>(ranks))(participants, algorithm);
  }
};

TEST_P(SeveralHosts, ReducePrivateMemory) {
  World world = make();
  world.run([](Engine& engine) {
    const auto ranks = static_cast<double>(engine.size());
    for (const std::size_t count : {0u, 1u, 3u, 1000u, 40'000u}) {
      std::vector<double> tensor(count);
      for (std::size_t i = 0; i < count; ++i) {
        tensor[i] = static_cast<double>(engine.rank() + 1) * static_cast<double>(i % 97);
      }
      auto handle = allreduce(engine, tensor, {.name = "t", .prescale = 2.0, .postscale = 0.5});
      ASSERT_TRUE(handle.ok());
      ASSERT_TRUE(engine.wait(handle.value()).ok());
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(tensor[i], ranks * (ranks + 1) / 2 * static_cast<double>(i % 97));
      }
    }
  });
}

// The stage grows, is reused, and goes in rounds; one rank comes late.
TEST_P(SeveralHosts, StagePrivateMemoryOfAnySize) {
  World world = make();
  world.run([](Engine& engine) {
    for (const std::size_t count : {0u, 1u, 5'000u, 100u, 70'000u, 16'384u, 1u}) {
      std::vector<float> a(count, static_cast<float>(engine.rank()));
      std::vector<float> b(3, 1.0f);
      if (engine.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      auto sum = engine.submit(in_place<float>(OpKind::kAllreduce, {&a, &b}, {.name = "sum"}));
      std::vector<float> c(count, static_cast<float>(engine.rank()));
      const Rank root = engine.size() - 1;
      auto sent =
          engine.submit(in_place<float>(OpKind::kBroadcast, {&c}, {.name = "sent", .root = root}));
      ASSERT_TRUE(sum.ok() && sent.ok());
      ASSERT_TRUE(engine.wait(sum.value()).ok());
      ASSERT_TRUE(engine.wait(sent.value()).ok());
      const auto ranks = static_cast<float>(engine.size());
      EXPECT_EQ(a, std::vector<float>(count, ranks * (ranks - 1) / 2));
      EXPECT_EQ(b, std::vector<float>(3, ranks));
      EXPECT_EQ(c, std::vector<float>(count, static_cast<float>(root)));
    }
  });
}

TEST_P(SeveralHosts, AverageAndFuse) {
  World world = make();
  world.run([](Engine& engine) {
    std::vector<float> a(100, static_cast<float>(engine.rank()));
    std::vector<float> b(33, 2.0f * static_cast<float>(engine.rank()));
    auto handle = engine.submit(
        in_place<float>(OpKind::kAllreduce, {&a, &b}, {.name = "group", .op = ReduceOp::kAverage}));
    ASSERT_TRUE(handle.ok());
    ASSERT_TRUE(engine.wait(handle.value()).ok());
    const auto mean = static_cast<float>(engine.size() - 1) / 2.0f;
    for (const float value : a) ASSERT_EQ(value, mean);
    for (const float value : b) ASSERT_EQ(value, 2.0f * mean);
  });
}

TEST_P(SeveralHosts, BroadcastGatherScatterExchange) {
  World world = make();
  world.run([](Engine& engine) {
    const int ranks = engine.size();
    const auto own = static_cast<std::int64_t>(engine.rank());
    for (Rank root = 0; root < ranks; ++root) {
      std::vector<std::int64_t> tensor(500, own);
      auto handle = engine.submit(
          in_place<std::int64_t>(OpKind::kBroadcast, {&tensor}, {.name = "b", .root = root}));
      ASSERT_TRUE(handle.ok());
      ASSERT_TRUE(engine.wait(handle.value()).ok());
      for (const std::int64_t value : tensor) ASSERT_EQ(value, root);
    }
    // Rank r gives r rows; rank r gets what everybody has for it.
    std::vector<std::int64_t> gathered, exchanged, scattered;
    const std::vector<std::int64_t> rows(static_cast<std::size_t>(own), own);
    auto gather = gather_like(engine, OpKind::kAllgather, rows, {own}, gathered);
    ASSERT_TRUE(gather.ok());
    ASSERT_TRUE(engine.wait(gather.value()).ok());
    std::vector<std::int64_t> expected;
    for (Rank r = 0; r < ranks; ++r)
      expected.insert(expected.end(), static_cast<std::size_t>(r), r);
    EXPECT_EQ(gathered, expected);

    std::vector<std::int64_t> splits, sent;
    for (Rank to = 0; to < ranks; ++to) {
      splits.push_back(to);
      for (Rank i = 0; i < to; ++i) sent.push_back(100 * own + to);
    }
    auto exchange = gather_like(engine, OpKind::kAlltoall, sent, splits, exchanged);
    ASSERT_TRUE(exchange.ok());
    ASSERT_TRUE(engine.wait(exchange.value()).ok());
    expected.clear();
    for (Rank from = 0; from < ranks; ++from) {
      for (Rank i = 0; i < own; ++i) expected.push_back(100 * from + own);
    }
    EXPECT_EQ(exchanged, expected);

    std::vector<std::int64_t> whole(1000);
    std::iota(whole.begin(), whole.end(), own);
    auto scatter = gather_like(engine, OpKind::kReducescatter, whole, {}, scattered);
    ASSERT_TRUE(scatter.ok());
    ASSERT_TRUE(engine.wait(scatter.value()).ok());
    ASSERT_FALSE(scattered.empty());
    for (std::size_t i = 1; i < scattered.size(); ++i) {
      ASSERT_EQ(scattered[i] - scattered[i - 1], ranks);
    }
    auto barrier = engine.submit(in_place<float>(OpKind::kBarrier, {}, {}));
    ASSERT_TRUE(barrier.ok());
    EXPECT_TRUE(engine.wait(barrier.value()).ok());
  });
}

// Of each set, ranks of several hosts, or of one; sets overlap, and each rank calls in another
// order.
TEST_P(SeveralHosts, RunSetsOfAnyRanks) {
  World world = make();
  const int ranks = world.size();
  std::vector<std::vector<Rank>> sets = {{ranks - 1}};
  if (ranks > 2) sets.insert(sets.end(), {{0, ranks - 1}, {0, 1}});
  if (ranks > 3) sets.insert(sets.end(), {{0, 1, ranks - 1}, {1, 2}, {1, 2, 3}});
  world.run([&sets, ranks](Engine& engine) {
    std::vector<GroupId> groups;
    for (const auto& set : sets) {
      const auto added = engine.add_group(set);
      ASSERT_TRUE(added.ok()) << added.error().text;
      groups.push_back(added.value()->id);
    }
    for (const std::size_t count : {1u, 1000u, 40'000u}) {
      std::vector<std::vector<double>> sums(sets.size()), sent(sets.size());
      std::vector<Handle> handles;
      for (std::size_t i = 0; i < sets.size(); ++i) {
        const std::size_t at = (i + static_cast<std::size_t>(engine.rank())) % sets.size();
        if (!std::binary_search(sets[at].begin(), sets[at].end(), engine.rank())) continue;
        sums[at].assign(count, engine.rank() + 1.0);
        sent[at].assign(count, engine.rank() + 1.0);
        for (const OpKind kind : {OpKind::kAllreduce, OpKind::kBroadcast}) {
          auto& tensor = kind == OpKind::kAllreduce ? sums[at] : sent[at];
          auto handle = engine.submit(
              in_place<double>(kind, {&tensor},
                               {.name = "x",
                                .group = groups[at],
                                .root = kind == OpKind::kBroadcast ? sets[at].back() : kNoRank}));
          ASSERT_TRUE(handle.ok()) << handle.error().text;
          handles.push_back(std::move(handle).value());
        }
      }
      std::vector<double> all(count, 1.0);
      handles.push_back(allreduce(engine, all, {.name = "x"}).value());
      ASSERT_TRUE(engine.wait(handles).ok());
      EXPECT_EQ(all, std::vector<double>(count, ranks));
      for (std::size_t i = 0; i < sets.size(); ++i) {
        if (sums[i].empty()) continue;
        const auto place = std::find(sets[i].begin(), sets[i].end(), engine.rank());
        const auto rows = place - sets[i].begin() + 1;
        const std::vector<double> own(static_cast<std::size_t>(rows), static_cast<double>(rows));
        std::vector<double> gathered, expected;
        auto gather =
            gather_like(engine, OpKind::kAllgather, own, {rows}, gathered, {.group = groups[i]});
        ASSERT_TRUE(engine.wait(gather.value()).ok());
        for (std::size_t n = 1; n <= sets[i].size(); ++n) {
          expected.insert(expected.end(), n, static_cast<double>(n));
        }
        EXPECT_EQ(gathered, expected);
        const ArenaFloats bucket(engine, count);
        std::fill_n(bucket.data(), count, static_cast<float>(rows));
        ASSERT_TRUE(bucket.average(engine, {}, groups[i]).ok());
        EXPECT_EQ(bucket.data()[count - 1], static_cast<float>(sets[i].size() + 1) / 2.0F);
        const double sum = std::accumulate(sets[i].begin(), sets[i].end(), 0.0);
        EXPECT_EQ(sums[i], std::vector<double>(count, sum + static_cast<double>(sets[i].size())));
        EXPECT_EQ(sent[i], std::vector<double>(count, sets[i].back() + 1.0));
      }
    }
    for (const GroupId group : groups) {
      const Status removed = engine.remove_group(group);
      EXPECT_TRUE(removed.ok()) << removed.error().text;
    }
  });
}

// The ranks have 1, 2 or 3 buckets each, and join.
TEST_P(SeveralHosts, ReduceTheArenaWithoutWhoHasJoined) {
  World world = make();
  for (const bool wire : {false, true}) {
    world.run([wire](Engine& engine) {
      const ArenaFloats bucket(engine, 5000);
      const auto buckets_of = [](Rank rank) { return 1 + (rank + 1) % 3; };
      for (int i = 0; i < buckets_of(engine.rank()); ++i) {
        std::fill_n(bucket.data(), bucket.count, 1.0F);
        const auto dtype = wire ? std::optional(DType::kBFloat16) : std::nullopt;
        const Status averaged = bucket.average(engine, dtype);
        ASSERT_TRUE(averaged.ok()) << averaged.error().text;
        int there = 0;
        for (Rank rank = 0; rank < engine.size(); ++rank) there += buckets_of(rank) > i ? 1 : 0;
        const float expected = static_cast<float>(there) / static_cast<float>(engine.size());
        for (const std::size_t at : {std::size_t{0}, bucket.count / 2, bucket.count - 1}) {
          EXPECT_NEAR(bucket.data()[at], expected, wire ? 0.01F : 1e-6F);
        }
      }
      ASSERT_TRUE(engine.join().ok());
    });
  }
}

// The ranks have 1, 2 or 3 steps each, and join: the others of a host do its work.
TEST_P(SeveralHosts, ShareAStepWithoutWhoHasJoined) {
  World world = make();
  world.run([](Engine& engine) {
    const ArenaFloats bucket(engine, 100'000);  // several chunks
    const auto steps_of = [](Rank rank) { return 1 + (rank + 1) % 3; };
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::fill_n(bucket.data(), bucket.count, 0.0F);
      for (int step = 0; step < steps_of(engine.rank()); ++step) {
        std::vector<Rank> joined;
        for (Rank rank = 0; rank < engine.size(); ++rank) {
          if (steps_of(rank) <= step) joined.push_back(rank);
        }
        const Handle handle = bucket.add_one(engine);
        const Status shared = engine.wait(handle);
        ASSERT_TRUE(shared.ok()) << shared.error().text;
        EXPECT_EQ(handle->joined(), joined);
        for (std::size_t i = 0; i < bucket.count; ++i) {
          ASSERT_EQ(bucket.data()[i], static_cast<float>(step + 1));
        }
        Submission barrier;
        barrier.spec = std::make_shared<RequestSpec>(
            RequestSpec{.name = "looked", .kind = OpKind::kBarrier, .tensors = {}});
        ASSERT_TRUE(engine.wait(engine.submit(std::move(barrier)).value()).ok());
      }
      ASSERT_TRUE(engine.join().ok());
      EXPECT_EQ(engine.joins(), static_cast<std::uint64_t>(epoch + 1));
    }
  });
}

TEST_P(SeveralHosts, ReduceTheArenaWhereItLies) {
  World world = make();
  constexpr std::size_t kCount = 50'000;
  std::vector<std::vector<float>> results(static_cast<std::size_t>(world.size()));
  world.run([&](Engine& engine) {
    const ArenaFloats bucket(engine, kCount);
    float* values = bucket.data();
    for (int step = 0; step < 5; ++step) {
      for (std::size_t i = 0; i < kCount; ++i) {
        values[i] = 1.0f / static_cast<float>(engine.rank() + 2 + static_cast<int>(i) % 7 + step);
      }
      ASSERT_TRUE(bucket.average(engine).ok());
      for (std::size_t i = 0; i < kCount; i += 997) {
        double sum = 0.0;
        for (int rank = 0; rank < engine.size(); ++rank) {
          sum += 1.0 / (rank + 2 + static_cast<int>(i) % 7 + step);
        }
        ASSERT_NEAR(values[i], sum / engine.size(), 1e-6);
      }
    }
    results[static_cast<std::size_t>(engine.rank())].assign(values, values + kCount);
  });
  for (const auto& result : results) {
    EXPECT_EQ(std::memcmp(result.data(), results[0].data(), kCount * sizeof(float)), 0);
  }
}

// With a wire dtype every rank has the bits that a plain loop gives, in every run.
TEST_P(SeveralHosts, RoundMessagesAsAPlainLoopDoes) {
  World world = make();
  for (const DType wire_dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const std::size_t count : {1u, 20u, 7'000u}) {
      std::vector<std::vector<float>> inputs, host_sums, in_arena, in_private;
      for (int rank = 0; rank < world.size(); ++rank) {
        inputs.push_back(odd_numbers(count, static_cast<std::uint32_t>(rank + 1)));
        inputs.back()[count / 2] = rank == 1 ? std::numeric_limits<float>::infinity() : 1e38f;
        if (count > 1 && rank == 0) inputs.back()[0] = std::nanf("");
      }
      std::size_t first = 0;
      for (const int ranks : GetParam().ranks_of_hosts) {
        host_sums.push_back(inputs[first]);
        for (std::size_t local = 1; local < static_cast<std::size_t>(ranks); ++local) {
          for (std::size_t i = 0; i < count; ++i) host_sums.back()[i] += inputs[first + local][i];
        }
        first += static_cast<std::size_t>(ranks);
      }
      in_arena = in_private = inputs;
      world.run([&](Engine& engine) {
        const auto rank = static_cast<std::size_t>(engine.rank());
        const ArenaFloats bucket(engine, count);
        std::copy(inputs[rank].begin(), inputs[rank].end(), bucket.data());
        ASSERT_TRUE(bucket.average(engine, wire_dtype).ok());
        in_arena[rank].assign(bucket.data(), bucket.data() + count);
        auto handle =
            allreduce(engine, in_private[rank],
                      {.name = "own", .op = ReduceOp::kAverage, .wire_dtype = wire_dtype});
        ASSERT_TRUE(handle.ok());
        ASSERT_TRUE(engine.wait(handle.value()).ok());
      });
      const auto of_hosts = rounded_average(wire_dtype, host_sums, inputs.size());
      for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
        EXPECT_TRUE(same_numbers(in_arena[rank], of_hosts)) << dtype_name(wire_dtype) << count;
        EXPECT_TRUE(same_numbers(in_private[rank], of_hosts)) << dtype_name(wire_dtype) << count;
      }
    }
  }
}

TEST_P(SeveralHosts, DisagreeOnTheWireDtype) {
  World world = make();
  world.run([](Engine& engine) {
    std::vector<float> tensor(2, 1.0f);
    Options options{.name = "t"};
    if (engine.rank() == 0) options.wire_dtype = DType::kBFloat16;
    auto handle = allreduce(engine, tensor, options);
    ASSERT_TRUE(handle.ok());
    const Status status = engine.wait(handle.value());
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
    EXPECT_NE(status.error().text.find("wire dtypes differ: rank 0 has wire dtype bfloat16"),
              std::string::npos);
  });
}

TEST_P(SeveralHosts, GoOverAsManyStreamsAsTheRequestSays) {
  World world = make();
  world.run([](Engine& engine) {
    std::vector<double> tensor(20'000);
    for (const std::uint8_t streams : std::initializer_list<std::uint8_t>{1, 2, 4, 64, 0}) {
      std::ranges::fill(tensor, 1.0);
      auto handle = allreduce(engine, tensor, {.name = "t", .streams = streams});
      ASSERT_TRUE(handle.ok());
      ASSERT_TRUE(engine.wait(handle.value()).ok());
      ASSERT_EQ(tensor, std::vector<double>(20'000, engine.size()));
    }
  });
}

TEST_P(SeveralHosts, ManyAtATimeInAnyOrder) {
  World world = make();
  world.run([](Engine& engine) {
    constexpr int kTensors = 60;
    std::vector<std::vector<float>> tensors;
    for (int i = 0; i < kTensors; ++i) {
      tensors.emplace_back(static_cast<std::size_t>(10 + 37 * i), static_cast<float>(i));
    }
    std::vector<Handle> handles;
    for (int i = 0; i < kTensors; ++i) {
      const int which = engine.rank() % 2 == 0 ? i : kTensors - 1 - i;
      auto handle = allreduce(engine, tensors[static_cast<std::size_t>(which)],
                              {.name = "t" + std::to_string(which)});
      ASSERT_TRUE(handle.ok());
      handles.push_back(handle.value());
    }
    ASSERT_TRUE(engine.wait(handles).ok());
    for (int i = 0; i < kTensors; ++i) {
      for (const float value : tensors[static_cast<std::size_t>(i)]) {
        ASSERT_EQ(value, static_cast<float>(i * engine.size()));
      }
    }
  });
}

TEST_P(SeveralHosts, DisagreeEverywhere) {
  World world = make();
  world.run([](Engine& engine) {
    std::vector<float> tensor(engine.rank() == 1 ? 3 : 2, 1.0f);
    auto handle = allreduce(engine, tensor, {.name = "shape"});
    ASSERT_TRUE(handle.ok());
    const Status status = engine.wait(handle.value());
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
    std::vector<float> good(4, 1.0f);
    auto again = allreduce(engine, good, {.name = "good"});
    ASSERT_TRUE(again.ok());
    EXPECT_TRUE(engine.wait(again.value()).ok());
  });
}

TEST_P(SeveralHosts, ARankThatRaisesEndsAll) {
  World world = make();
  const int last = world.size() - 1;
  world.run([last](Engine& engine) {
    if (engine.rank() == last) {
      engine.abort("rank " + std::to_string(last) + " raised ValueError");
      return;
    }
    std::vector<float> tensor(4, 1.0f);
    auto handle = allreduce(engine, tensor, {.name = "t"});
    if (!handle.ok()) return;  // it knows already
    const Status status = engine.wait(handle.value());
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kRankLost);
    EXPECT_EQ(status.error().rank, last);
    EXPECT_NE(status.error().text.find("raised ValueError"), std::string::npos);
  });
}

TEST_P(SeveralHosts, ARankThatLeavesIsNamed) {
  World world = make();
  const int last = world.size() - 1;
  world.run([last](Engine& engine) {
    if (engine.rank() == last) return engine.shutdown();
    std::vector<float> tensor(4, 1.0f);
    auto handle = allreduce(engine, tensor, {.name = "t"});
    ASSERT_TRUE(handle.ok());
    const Status status = engine.wait(handle.value());
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kRankLeft) << status.error().text;
  });
}

// Rank 0 gives the operations their order: what it has not heard of before it left has none.
TEST_P(SeveralHosts, Rank0ThatLeavesIsNamedWhenever) {
  for (const int after_ms : {0, 1, 2, 5, 50}) {
    World world = make();
    world.run([after_ms](Engine& engine) {
      std::vector<float> tensor(4, 1.0f);
      auto handle = allreduce(engine, tensor, {.name = "t"});
      ASSERT_TRUE(handle.ok());
      ASSERT_TRUE(engine.wait(handle.value()).ok());
      if (engine.rank() == 0) return engine.shutdown();
      std::this_thread::sleep_for(std::chrono::milliseconds(after_ms * engine.rank()));
      auto second = allreduce(engine, tensor, {.name = "t"});
      ASSERT_TRUE(second.ok());
      const Status status = engine.wait(second.value());
      EXPECT_FALSE(status.ok());
      if (!status.ok()) {
        EXPECT_EQ(status.error().code, ErrorCode::kRankLeft) << status.error().text;
      }
      engine.shutdown();
    });
  }
}

// An elastic job has to know which host does not reach which.
TEST(SeveralHostsApart, BothSidesSayWhomTheyCannotReach) {
  std::mutex mutex;
  std::vector<Rank> unreachable;
  EngineOptions options{.pace = {.spin_ns = 20'000}};
  options.unreachable = [&](Rank rank) {
    const std::scoped_lock lock(mutex);
    unreachable.push_back(rank);
  };
  World world = several_hosts({2, 1}, options);
  const auto reduce = [](Engine& engine) -> Status {
    std::vector<float> tensor(4, 1.0f);
    auto handle = allreduce(engine, tensor, {.name = "t"});
    return handle ? engine.wait(handle.value()) : handle.error();
  };
  world.run([&](Engine& engine) { EXPECT_TRUE(reduce(engine).ok()); });
  for (int fd = 0; fd < 1024; ++fd) {
    const auto peer = peer_address(fd);
    if (peer.ok() && peer.value().family() == AF_INET) ::shutdown(fd, SHUT_RDWR);
  }
  world.run([&](Engine& engine) { EXPECT_EQ(reduce(engine).error().code, ErrorCode::kRankLost); });
  const std::scoped_lock lock(mutex);
  EXPECT_TRUE(std::ranges::count(unreachable, 2) > 0) << "by host 0";
  EXPECT_TRUE(std::ranges::any_of(unreachable, [](Rank rank) { return rank < 2; })) << "by host 1";
}

// Known operations are joined on the way; who keeps the others waiting must be known all the same.
TEST(SeveralHostsStall, NamesTheRankThatIsMissing) {
  std::mutex mutex;
  std::vector<std::string> warnings;
  EngineOptions options{.pace = {.spin_ns = 20'000}, .stall_warning_ns = 400'000'000};
  options.warn = [&](const std::string& text) {
    const std::scoped_lock lock(mutex);
    warnings.push_back(text);
  };
  World world = several_hosts({2, 1, 2}, options);
  world.run([](Engine& engine) {
    std::vector<float> tensor(4);
    for (int step = 0; step < 3; ++step) {
      std::fill(tensor.begin(), tensor.end(), 1.0f);
      if (step == 2 && engine.rank() == 3) std::this_thread::sleep_for(std::chrono::seconds(1));
      auto handle = allreduce(engine, tensor, {.name = "t"});
      ASSERT_TRUE(handle.ok());
      ASSERT_TRUE(engine.wait(handle.value()).ok());
      EXPECT_EQ(tensor[0], 5.0f);
    }
  });
  const std::scoped_lock lock(mutex);
  ASSERT_GE(warnings.size(), 4u);  // each of the others waited
  for (const std::string& text : warnings) {
    EXPECT_NE(text.find("waiting for rank 3"), std::string::npos) << text;
  }
}

// Host 0 is busy for longer than a farewell lasts. The host of the rank that left knows all the
// same that it left.
TEST(SeveralHostsFarewell, IsNoLossWhenHost0HearsItTooLate) {
  World world = several_hosts({1, 2}, {.pace = {.spin_ns = 20'000}});
  world.run([](Engine& engine) {
    // Nobody gives anything to anybody, so that only rank 0 waits for rank 0.
    Submission submission;
    submission.spec = std::make_shared<RequestSpec>(RequestSpec{
        .name = "nothing", .kind = OpKind::kAlltoall, .tensors = {{.shape = {kAnyRows}}}});
    submission.rows = {0, 0, 0};
    submission.inputs = {nullptr};
    submission.outputs = {nullptr};
    submission.allocate = [&engine](std::size_t, std::int64_t) -> Result<std::byte*> {
      if (engine.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(6'500));
      return nullptr;
    };
    auto handle = engine.submit(std::move(submission));
    ASSERT_TRUE(handle.ok());
    ASSERT_TRUE(engine.wait(handle.value()).ok());
    if (engine.rank() == 2) return engine.shutdown();
    std::vector<float> tensor(4, 1.0f);
    auto after = allreduce(engine, tensor, {.name = "t"});
    ASSERT_TRUE(after.ok());
    const Status status = engine.wait(after.value());
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kRankLeft) << status.error().text;
  });
}

INSTANTIATE_TEST_SUITE_P(
    , SeveralHosts,
    ::testing::Values(Layout{{1, 1}}, Layout{{1, 1}, 2, 0}, Layout{{2, 2}}, Layout{{2, 2}, 2},
                      Layout{{2, 2}, 2, 0}, Layout{{1, 1, 1}, 1, 0}, Layout{{1, 1, 1}, 2, 0},
                      Layout{{1, 1, 1, 1}}, Layout{{2, 1, 3}}, Layout{{2, 1, 3}, 2, 0},
                      Layout{{3, 1}, 1, 0}, Layout{std::vector<int>(16, 1)},
                      Layout{{1, 1}, 1, 30'000, true}, Layout{{2, 2}, 2, 0, true},
                      Layout{{2, 1, 3}, 1, 0, true}),
    [](const auto& shape) { return name_of(shape.param); });

}  // namespace
}  // namespace ciranda::testing
