// One list for every backend of this machine: breaks when one of them computes something else than
// the others, or does not end.
#include <dirent.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <ostream>
#include <random>
#include <span>
#include <string>

#include "core/wire/pair.h"
#include "engine/hosts.h"
#include "kernels/oracle.h"
#include "required.h"

namespace ciranda::testing {
namespace {

using kernels::oracle::visit_element;

struct Setting {
  const char* name;
  BackendId backend;
  std::vector<int> ranks_of_hosts;
};
void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.name;
}

// Of NCCL, which wants memory of a GPU, tests/cpp/backend/nccl runs a list of its own.
const Setting kThreeRanks[] = {
    {"shm", BackendId::kNative, {3}},
    {"ring", BackendId::kNative, {2, 1}},
    {"gloo", BackendId::kGloo, {3}},
    {"gloo_on_two_hosts", BackendId::kGloo, {2, 1}},
};
// Which a backend may treat in another way.
const Setting kOtherNumbers[] = {
    {"shm_1", BackendId::kNative, {1}},       {"shm_2", BackendId::kNative, {2}},
    {"ring_1_1", BackendId::kNative, {1, 1}}, {"ring_2_1_2", BackendId::kNative, {2, 1, 2}},
    {"gloo_1", BackendId::kGloo, {1}},        {"gloo_2", BackendId::kGloo, {2}},
    {"gloo_4", BackendId::kGloo, {4}},        {"gloo_2_1_2", BackendId::kGloo, {2, 1, 2}},
};

// A tensor of any dtype whose elements are small whole numbers: exact in all of them.
struct Tensor {
  Tensor(DType type, std::size_t size, const std::function<int(std::size_t)>& value)
      : dtype(type), bytes(size * dtype_bytes(type)) {
    visit_element(dtype, [&](auto element) {
      using Element = decltype(element);
      for (std::size_t i = 0; i < size; ++i) {
        const auto stored = Element::encode(static_cast<typename Element::Computed>(value(i)));
        std::memcpy(bytes.data() + i * sizeof stored, &stored, sizeof stored);
      }
    });
  }
  Tensor(DType type, std::size_t size) : dtype(type), bytes(size * dtype_bytes(type)) {}

  std::int64_t count() const {
    return static_cast<std::int64_t>(bytes.size() / dtype_bytes(dtype));
  }
  std::byte* data() { return bytes.data(); }
  bool operator==(const Tensor&) const = default;

  DType dtype;
  std::vector<std::byte> bytes;
};
void PrintTo(const Tensor& tensor, std::ostream* out) {
  *out << dtype_name(tensor.dtype) << '[' << tensor.count() << ']';
}

constexpr DType kReduced[] = {DType::kUInt8,   DType::kInt8,     DType::kInt32,   DType::kInt64,
                              DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};
// Of each width, for what only moves bytes.
constexpr DType kMoved[] = {DType::kUInt8, DType::kBFloat16, DType::kFloat32, DType::kInt64};
// One element, fewer than ranks, more than a chunk, several rounds of a stage.
constexpr std::size_t kCounts[] = {0, 1, 2, 1000, 70'001};
constexpr std::size_t kOneCount[] = {1000};

// How data is cut does not depend on what is computed of it.
std::span<const std::size_t> counts_of(ReduceOp op) {
  if (op == ReduceOp::kSum) return kCounts;
  return kOneCount;
}

// The average of any number of ranks is whole.
int value_of(Rank rank, std::size_t i) {
  return static_cast<int>(i % 3) + 2 * rank + 1;
}

int reduced(ReduceOp op, int ranks, std::size_t i) {
  int sum = 0;
  int product = 1;
  for (Rank rank = 0; rank < ranks; ++rank) {
    sum += value_of(rank, i);
    product *= value_of(rank, i);
  }
  switch (op) {
    case ReduceOp::kSum:
      return sum;
    case ReduceOp::kAverage:
      return sum / ranks;
    case ReduceOp::kMin:
      return value_of(0, i);
    case ReduceOp::kMax:
      return value_of(ranks - 1, i);
    case ReduceOp::kProduct:
    case ReduceOp::kAdasum:
      break;
  }
  return product;
}

class AllBackends : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (const Status available = Backends::available(GetParam().backend); !available) {
      CIRANDA_SKIP(available.error().text);
    }
  }

  static World make(bool overlap = false) {
    EngineOptions options{.pace = {.overlap = overlap, .spin_ns = 20'000}};
    options.ring.stage_bytes_max = 65'536;  // several rounds
    const std::vector<int>& hosts = GetParam().ranks_of_hosts;
    return hosts.size() == 1 ? World(hosts[0], options) : several_hosts(hosts, options);
  }

  static RequestSpec spec(OpKind kind, const std::string& name) {
    return {.name = name, .kind = kind, .backend = GetParam().backend};
  }

  // What reads `inputs` and writes `outputs`, which may be the same.
  static Submission elementwise(RequestSpec spec, std::vector<Tensor>& inputs,
                                std::vector<Tensor>& outputs) {
    Submission submission;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      spec.tensors.push_back({inputs[i].dtype, {inputs[i].count()}});
      submission.inputs.push_back(inputs[i].data());
      submission.outputs.push_back(outputs[i].data());
    }
    submission.spec = std::make_shared<RequestSpec>(std::move(spec));
    return submission;
  }

  // What writes as many rows as it turns out; a row is one element.
  static Submission resizing(RequestSpec spec, Tensor& input, std::vector<std::int64_t> rows,
                             Tensor& output) {
    const bool any = takes_rows(spec.kind);
    spec.tensors = {{input.dtype, {any ? kAnyRows : input.count()}}};
    Submission submission;
    submission.spec = std::make_shared<RequestSpec>(std::move(spec));
    submission.rows = std::move(rows);
    submission.inputs = {input.data()};
    submission.allocate = [&output](std::size_t, std::int64_t count) -> Result<std::byte*> {
      output.bytes.resize(static_cast<std::size_t>(count) * dtype_bytes(output.dtype));
      return output.data();
    };
    return submission;
  }

  static Status run(Engine& engine, Submission submission) {
    auto handle = engine.submit(std::move(submission));
    return handle.ok() ? engine.wait(handle.value()) : handle.error();
  }

  // The sum of a tensor of ones, one for each rank.
  static Status count_ranks(Engine& engine, const std::string& name, std::size_t size = 100) {
    std::vector<Tensor> ones = {Tensor(DType::kFloat32, size, [](std::size_t) { return 1; })};
    const Tensor counted(DType::kFloat32, size, [&](std::size_t) { return engine.size(); });
    CIRANDA_TRY(run(engine, elementwise(spec(OpKind::kAllreduce, name), ones, ones)));
    EXPECT_EQ(ones[0], counted);
    return {};
  }
};
class Ends : public AllBackends {};

std::string name_of(const ::testing::TestParamInfo<Setting>& test) {
  return test.param.name;
}
INSTANTIATE_TEST_SUITE_P(Of, AllBackends, ::testing::ValuesIn(kThreeRanks), name_of);
INSTANTIATE_TEST_SUITE_P(Numbers, AllBackends, ::testing::ValuesIn(kOtherNumbers), name_of);
INSTANTIATE_TEST_SUITE_P(Of, Ends, ::testing::ValuesIn(kThreeRanks), name_of);

// ------------------------------------------------------------------------------------------------
// Every collective

TEST_P(AllBackends, AllreduceEveryDtypeAndOpInPlaceAndNot) {
  World world = make();
  world.run([](Engine& engine) {
    for (const DType dtype : kReduced) {
      for (int number = 0; number < kElementwiseOpCount; ++number) {
        const auto op = static_cast<ReduceOp>(number);
        const bool exact = dtype_bytes(dtype) > 2 || !is_floating(dtype) || engine.size() <= 3;
        if (op == ReduceOp::kProduct && !exact) continue;
        for (const std::size_t count : counts_of(op)) {
          RequestSpec wanted = spec(OpKind::kAllreduce, "t");
          wanted.op = op;
          const Tensor input(dtype, count, [&](auto i) { return value_of(engine.rank(), i); });
          const Tensor expected(dtype, count,
                                [&](auto i) { return reduced(op, engine.size(), i); });
          std::vector<Tensor> kept = {input};
          std::vector<Tensor> output = {Tensor(dtype, count)};
          std::vector<Tensor> in_place = {input};
          ASSERT_TRUE(run(engine, elementwise(wanted, kept, output)).ok());
          ASSERT_TRUE(run(engine, elementwise(wanted, in_place, in_place)).ok());
          ASSERT_EQ(output[0], expected) << reduce_op_name(op);
          ASSERT_EQ(in_place[0], expected) << reduce_op_name(op);
          ASSERT_EQ(kept[0], input);
        }
      }
    }
  });
}

TEST_P(AllBackends, AllreduceScalesBeforeAndAfter) {
  World world = make();
  world.run([](Engine& engine) {
    for (const DType dtype : {DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
      RequestSpec wanted = spec(OpKind::kAllreduce, "t");
      wanted.prescale = 4.0;
      wanted.postscale = 0.5;
      std::vector<Tensor> tensor = {
          Tensor(dtype, 5000, [&](auto i) { return value_of(engine.rank(), i); })};
      const Tensor expected(dtype, 5000,
                            [&](auto i) { return 2 * reduced(ReduceOp::kSum, engine.size(), i); });
      ASSERT_TRUE(run(engine, elementwise(wanted, tensor, tensor)).ok());
      ASSERT_EQ(tensor[0], expected);
    }
  });
}

TEST_P(AllBackends, BroadcastAGroupFromEveryRank) {
  World world = make();
  world.run([](Engine& engine) {
    for (const DType dtype : kMoved) {
      for (Rank root = 0; root < engine.size(); ++root) {
        for (const std::size_t count : kCounts) {
          RequestSpec wanted = spec(OpKind::kBroadcast, "t");
          wanted.root = root;
          const auto of = [&](Rank rank) {
            const auto value = [rank](std::size_t i) { return value_of(rank, i); };
            return std::vector{Tensor(dtype, count, value), Tensor(dtype, 3, value)};
          };
          std::vector<Tensor> input = of(engine.rank());
          std::vector<Tensor> output = {Tensor(dtype, count), Tensor(dtype, 3)};
          ASSERT_TRUE(run(engine, elementwise(wanted, input, output)).ok());
          ASSERT_TRUE(run(engine, elementwise(wanted, input, input)).ok());
          ASSERT_EQ(output, of(root));
          ASSERT_EQ(input, of(root));
        }
      }
    }
  });
}

// Rank r has r more rows than `least`.
TEST_P(AllBackends, AllgatherUnequalRows) {
  World world = make();
  world.run([](Engine& engine) {
    for (const DType dtype : kMoved) {
      for (const std::size_t least : kCounts) {
        std::vector<std::int64_t> from;  // by element of the output
        std::vector<std::size_t> index;
        const auto rows_of = [&](Rank rank) { return least + static_cast<std::size_t>(rank); };
        for (Rank rank = 0; rank < engine.size(); ++rank) {
          for (std::size_t i = 0; i < rows_of(rank); ++i) {
            from.push_back(rank);
            index.push_back(i);
          }
        }
        const std::size_t own = rows_of(engine.rank());
        Tensor input(dtype, own, [&](auto i) { return value_of(engine.rank(), i); });
        Tensor output(dtype, 0);
        ASSERT_TRUE(run(engine, resizing(spec(OpKind::kAllgather, "t"), input,
                                         {static_cast<std::int64_t>(own)}, output))
                        .ok());
        ASSERT_EQ(output, Tensor(dtype, from.size(), [&](auto i) {
                    return value_of(static_cast<Rank>(from[i]), index[i]);
                  }));
      }
    }
  });
}

// Rank r sends base + r + to rows to rank `to`, all with its number.
TEST_P(AllBackends, AlltoallUnequalSplits) {
  World world = make();
  world.run([](Engine& engine) {
    for (const DType dtype : kReduced) {
      for (const std::int64_t base : {0, 7, 9000}) {
        std::vector<std::int64_t> splits;
        std::vector<int> expected;
        std::int64_t total = 0;
        for (Rank other = 0; other < engine.size(); ++other) {
          splits.push_back(base + engine.rank() + other);
          total += splits.back();
          expected.insert(expected.end(), static_cast<std::size_t>(splits.back()), other);
        }
        Tensor input(dtype, static_cast<std::size_t>(total), [&](auto) { return engine.rank(); });
        Tensor output(dtype, 0);
        ASSERT_TRUE(
            run(engine, resizing(spec(OpKind::kAlltoall, "t"), input, splits, output)).ok());
        ASSERT_EQ(output, Tensor(dtype, expected.size(), [&](auto i) { return expected[i]; }));
      }
    }
  });
}

TEST_P(AllBackends, ReducescatterGivesTheFirstRanksTheRemainder) {
  World world = make();
  world.run([](Engine& engine) {
    const auto size = static_cast<std::size_t>(engine.size());
    for (const DType dtype : kReduced) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
        for (const std::size_t count : counts_of(op)) {
          RequestSpec wanted = spec(OpKind::kReducescatter, "t");
          wanted.op = op;
          const auto rank = static_cast<std::size_t>(engine.rank());
          const std::size_t first = rank * (count / size) + std::min(rank, count % size);
          const std::size_t own = count / size + (rank < count % size ? 1 : 0);
          Tensor input(dtype, count, [&](auto i) { return value_of(engine.rank(), i); });
          Tensor output(dtype, 0);
          ASSERT_TRUE(run(engine, resizing(wanted, input, {}, output)).ok());
          ASSERT_EQ(output, Tensor(dtype, own,
                                   [&](auto i) { return reduced(op, engine.size(), first + i); }));
        }
      }
    }
  });
}

// Rank r has r more rows than `least`.
TEST_P(AllBackends, GatherUnequalRowsAtEveryRoot) {
  World world = make();
  world.run([](Engine& engine) {
    for (const DType dtype : kMoved) {
      for (Rank root = 0; root < engine.size(); ++root) {
        for (const std::size_t least : kCounts) {
          const auto rows_of = [&](Rank rank) { return least + static_cast<std::size_t>(rank); };
          std::vector<int> all;
          for (Rank rank = 0; engine.rank() == root && rank < engine.size(); ++rank) {
            for (std::size_t i = 0; i < rows_of(rank); ++i) all.push_back(value_of(rank, i));
          }
          const std::size_t own = rows_of(engine.rank());
          std::vector<std::int64_t> rows(static_cast<std::size_t>(engine.size()), 0);
          rows[static_cast<std::size_t>(root)] = static_cast<std::int64_t>(own);
          RequestSpec wanted = spec(OpKind::kGather, "t");
          wanted.root = root;
          Tensor input(dtype, own, [&](auto i) { return value_of(engine.rank(), i); });
          Tensor output(dtype, 0);
          ASSERT_TRUE(run(engine, resizing(wanted, input, rows, output)).ok());
          ASSERT_EQ(output, Tensor(dtype, all.size(), [&](auto i) { return all[i]; }));
        }
      }
    }
  });
}

// Rank r gets r rows more than `least`, all with its number.
TEST_P(AllBackends, ScatterUnequalSplitsFromEveryRoot) {
  World world = make();
  world.run([](Engine& engine) {
    for (const DType dtype : kMoved) {
      for (Rank root = 0; root < engine.size(); ++root) {
        for (const std::size_t least : kCounts) {
          const auto rows_of = [&](Rank rank) { return least + static_cast<std::size_t>(rank); };
          std::vector<std::int64_t> rows(static_cast<std::size_t>(engine.size()), 0);
          std::vector<int> all;
          for (Rank rank = 0; engine.rank() == root && rank < engine.size(); ++rank) {
            rows[static_cast<std::size_t>(rank)] = static_cast<std::int64_t>(rows_of(rank));
            all.insert(all.end(), rows_of(rank), rank);
          }
          RequestSpec wanted = spec(OpKind::kScatter, "t");
          wanted.root = root;
          Tensor input(dtype, all.size(), [&](auto i) { return all[i]; });
          Tensor output(dtype, 0);
          ASSERT_TRUE(run(engine, resizing(wanted, input, rows, output)).ok());
          ASSERT_EQ(output,
                    Tensor(dtype, rows_of(engine.rank()), [&](auto) { return engine.rank(); }));
        }
      }
    }
  });
}

TEST_P(AllBackends, ReduceGivesTheRootAllAndLeavesTheOthersAlone) {
  World world = make();
  world.run([](Engine& engine) {
    for (const DType dtype : {DType::kInt32, DType::kBFloat16, DType::kFloat32}) {
      for (Rank root = 0; root < engine.size(); ++root) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax}) {
          for (const std::size_t count : counts_of(op)) {
            RequestSpec wanted = spec(OpKind::kReduce, "t");
            wanted.root = root;
            wanted.op = op;
            const Tensor input(dtype, count, [&](auto i) { return value_of(engine.rank(), i); });
            const Tensor total(dtype, count, [&](auto i) { return reduced(op, engine.size(), i); });
            const bool is_root = engine.rank() == root;
            std::vector<Tensor> kept = {input};
            std::vector<Tensor> output = {Tensor(dtype, count)};
            std::vector<Tensor> in_place = {input};
            ASSERT_TRUE(run(engine, elementwise(wanted, kept, output)).ok());
            ASSERT_TRUE(run(engine, elementwise(wanted, in_place, in_place)).ok());
            ASSERT_EQ(output[0], is_root ? total : Tensor(dtype, count));
            ASSERT_EQ(in_place[0], is_root ? total : input);
            ASSERT_EQ(kept[0], input);
          }
        }
      }
    }
  });
}

// Each rank sends to all others and receives from them at a time.
TEST_P(AllBackends, MessagesBetweenAllRanks) {
  World world = make();
  world.run([](Engine& engine) {
    for (const DType dtype : kMoved) {
      for (const std::size_t count : kCounts) {
        const auto message = [&](Pair pair) {
          return Tensor(dtype, count, [&](std::size_t i) {
            return value_of(pair.from, i + static_cast<std::size_t>(pair.to));
          });
        };
        std::vector<std::pair<Pair, std::vector<Tensor>>> messages;
        for (Rank other = 0; other < engine.size(); ++other) {
          if (other == engine.rank()) continue;
          const Pair out = {.from = engine.rank(), .to = other};
          messages.emplace_back(out, std::vector{message(out)});
          messages.emplace_back(Pair{.from = other, .to = engine.rank()},
                                std::vector{Tensor(dtype, count)});
        }
        std::vector<Handle> handles;
        for (auto& [pair, tensors] : messages) {
          RequestSpec wanted = spec(OpKind::kSend, "t");
          wanted.group = pair_id(pair);
          wanted.root = pair.from;
          auto handle = engine.submit(elementwise(wanted, tensors, tensors));
          ASSERT_TRUE(handle.ok()) << handle.error().text;
          handles.push_back(std::move(handle).value());
        }
        ASSERT_TRUE(engine.wait(handles).ok());
        for (const auto& [pair, tensors] : messages) ASSERT_EQ(tensors[0], message(pair));
      }
    }
  });
}

TEST_P(AllBackends, BucketsInTheArena) {
  World world = make();
  world.run([](Engine& engine) {
    for (const std::size_t count : {1u, 1000u, 70'001u}) {
      const ArenaBuffer arena = engine.allocate_arena(count * sizeof(float)).value();
      auto* floats = reinterpret_cast<float*>(arena.data);
      for (int step = 0; step < 3; ++step) {
        for (std::size_t i = 0; i < count; ++i) {
          floats[i] = static_cast<float>(value_of(engine.rank(), i));
        }
        RequestSpec wanted = spec(OpKind::kAllreduce, "bucket");
        wanted.op = ReduceOp::kAverage;
        wanted.in_arena = true;
        wanted.arena_bytes = count * sizeof(float);
        wanted.tensors = {{DType::kFloat32, {static_cast<std::int64_t>(count)}}};
        Submission submission;
        submission.spec = std::make_shared<RequestSpec>(std::move(wanted));
        submission.arena = arena.ref;
        ASSERT_TRUE(run(engine, std::move(submission)).ok());
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_EQ(floats[i], static_cast<float>(reduced(ReduceOp::kAverage, engine.size(), i)));
        }
      }
    }
  });
}

TEST_P(AllBackends, AllRanksHaveTheSameBits) {
  World world = make();
  std::vector<std::vector<Tensor>> results(static_cast<std::size_t>(world.size()));
  world.run([&](Engine& engine) {
    std::mt19937 random(static_cast<unsigned>(engine.rank()));
    std::normal_distribution<float> normal;
    std::vector<Tensor>& tensor = results[static_cast<std::size_t>(engine.rank())];
    tensor = {Tensor(DType::kFloat32, 100'001)};
    for (int i = 0; i < 100'001; ++i) {
      const float value = normal(random);
      std::memcpy(tensor[0].data() + static_cast<std::size_t>(i) * sizeof value, &value,
                  sizeof value);
    }
    RequestSpec wanted = spec(OpKind::kAllreduce, "t");
    wanted.op = ReduceOp::kAverage;
    ASSERT_TRUE(run(engine, elementwise(wanted, tensor, tensor)).ok());
  });
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
}

// Small ones are fused, groups run whole, and a barrier is nobody's.
TEST_P(AllBackends, ManyAtATimeInAnotherOrderOnEachRank) {
  World world = make();
  world.run([](Engine& engine) {
    constexpr std::size_t kTensors = 40;
    for (int step = 0; step < 3; ++step) {
      std::vector<std::vector<Tensor>> groups;
      for (std::size_t i = 0; i < kTensors; ++i) {
        const auto value = [&](std::size_t at) { return value_of(engine.rank(), at + i); };
        groups.push_back({Tensor(DType::kFloat32, 1 + i * 37, value)});
        if (i % 4 == 0) groups.back().emplace_back(DType::kInt64, i, value);
      }
      std::vector<Handle> handles;
      for (std::size_t i = 0; i < kTensors; ++i) {
        const std::size_t at = engine.rank() == 1 ? kTensors - 1 - i : i;
        auto handle = engine.submit(elementwise(spec(OpKind::kAllreduce, "t" + std::to_string(at)),
                                                groups[at], groups[at]));
        ASSERT_TRUE(handle.ok()) << handle.error().text;
        handles.push_back(std::move(handle).value());
      }
      RequestSpec barrier{.name = "all here", .kind = OpKind::kBarrier};
      ASSERT_TRUE(run(engine, {.spec = std::make_shared<RequestSpec>(barrier)}).ok());
      ASSERT_TRUE(engine.wait(handles).ok());
      for (std::size_t i = 0; i < kTensors; ++i) {
        for (const Tensor& tensor : groups[i]) {
          ASSERT_EQ(tensor,
                    Tensor(tensor.dtype, static_cast<std::size_t>(tensor.count()), [&](auto at) {
                      return reduced(ReduceOp::kSum, engine.size(), at + i);
                    }));
        }
      }
    }
  });
}

// With overlap no call is needed: neither a wait for something else nor poll() leaves it behind.
TEST_P(AllBackends, WhatNobodyWaitsForIsDoneToo) {
  World world = make(/*overlap=*/true);
  world.run([](Engine& engine) {
    for (int step = 0; step < 200; ++step) {
      std::vector<Tensor> small = {Tensor(DType::kFloat32, 1)};
      std::vector<Tensor> large = {Tensor(DType::kFloat32, 3000)};
      const auto first = engine.submit(elementwise(spec(OpKind::kAllreduce, "a"), small, small));
      const auto second = engine.submit(elementwise(spec(OpKind::kAllreduce, "b"), large, large));
      ASSERT_TRUE(first.ok() && second.ok());
      if (step % 2 == 0) {
        ASSERT_TRUE(engine.wait(first.value()).ok());
      } else {
        engine.poll(first.value());
      }
      const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      const auto done = [&] { return first.value()->done() && second.value()->done(); };
      while (!done() && std::chrono::steady_clock::now() < patience) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      const bool in_time = done();
      EXPECT_TRUE(in_time) << "step " << step;
      if (!in_time) engine.abort("left behind");
      ASSERT_TRUE(engine.wait({{first.value(), second.value()}}).ok());
    }
  });
}

// ------------------------------------------------------------------------------------------------
// Errors and ends

TEST_P(Ends, AMismatchIsToldEverywhereAndTheWorldGoesOn) {
  World world = make();
  world.run([](Engine& engine) {
    std::vector<Tensor> tensor = {
        Tensor(DType::kFloat32, engine.rank() == 1 ? 5 : 4, [](auto) { return 1; })};
    const Status status = run(engine, elementwise(spec(OpKind::kAllreduce, "t"), tensor, tensor));
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
    EXPECT_TRUE(count_ranks(engine, "t").ok());
  });
}

TEST_P(Ends, ARankWithAnotherRootIsAMismatchThatNamesBoth) {
  World world = make();
  world.run([](Engine& engine) {
    const auto expect_refused = [&](const Status& status) {
      ASSERT_FALSE(status.ok());
      EXPECT_NE(status.error().text.find("root ranks differ: ranks 0, 2 have root rank 0, rank 1 "
                                         "has root rank 2"),
                std::string::npos)
          << status.error().text;
    };
    Tensor tensor(DType::kFloat32, 4, [](auto) { return 1; });
    Tensor output(DType::kFloat32, 0);
    RequestSpec wanted = spec(OpKind::kGather, "t");
    wanted.root = engine.rank() == 1 ? 2 : 0;
    expect_refused(run(engine, resizing(wanted, tensor, {4, 0, 0}, output)));
    wanted.kind = OpKind::kScatter;
    expect_refused(run(engine, resizing(wanted, tensor, {4, 0, 0}, output)));
    std::vector<Tensor> whole = {tensor};
    wanted.kind = OpKind::kReduce;
    expect_refused(run(engine, elementwise(wanted, whole, whole)));
    EXPECT_TRUE(count_ranks(engine, "t").ok());
  });
}

TEST_P(Ends, ARankWithAnotherChoiceIsAMismatchThatNamesBoth) {
  if (GetParam().backend == BackendId::kNative) return;  // seen from the other side
  World world = make();
  world.run([](Engine& engine) {
    RequestSpec wanted = spec(OpKind::kAllreduce, "t");
    if (engine.rank() == 1) wanted.backend = BackendId::kNative;
    std::vector<Tensor> tensor = {Tensor(DType::kFloat32, 4)};
    const Status status = run(engine, elementwise(wanted, tensor, tensor));
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
    const std::string own(backend_name(GetParam().backend));
    EXPECT_NE(
        status.error().text.find("ranks 0, 2 have backend " + own + ", rank 1 has backend auto"),
        std::string::npos)
        << status.error().text;
    EXPECT_TRUE(count_ranks(engine, "t").ok());
  });
}

// At any point of an operation; what was done before may have been delivered.
TEST_P(Ends, ARankThatRaisesInTheMiddleEndsAll) {
  std::atomic<int> in_the_middle = 0;  // ranks whose operation was cut off
  for (int i = 0; i < 8; ++i) {
    World world = make();
    std::barrier all_are_in_the_middle(world.size());  // Gloo may be on its last piece elsewhere
    world.run([&, i](Engine& engine) {
      EXPECT_TRUE(count_ranks(engine, "before").ok());
      all_are_in_the_middle.arrive_and_wait();
      std::vector<Tensor> large = {Tensor(DType::kFloat32, 4'000'000)};
      auto handle = engine.submit(elementwise(spec(OpKind::kAllreduce, "large"), large, large));
      if (engine.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::microseconds(i * 300));
        engine.abort("rank 1 raised ValueError");
      }
      if (!handle.ok()) return;  // told already
      const auto begin = std::chrono::steady_clock::now();
      const Status status = engine.wait(handle.value());
      if (!status) {
        if (engine.rank() != 1) ++in_the_middle;
        EXPECT_EQ(status.error().code, ErrorCode::kRankLost);
        EXPECT_NE(status.error().text.find("rank 1 raised ValueError"), std::string::npos)
            << status.error().text;
      }
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
      const Status later = count_ranks(engine, "later");
      EXPECT_EQ(later.ok() ? ErrorCode::kSystem : later.error().code, ErrorCode::kRankLost);
    });
  }
  EXPECT_GT(in_the_middle, 0);
}

TEST_P(Ends, ARankThatLeavesEndsWhatOthersNeedItFor) {
  World world = make();
  world.run([](Engine& engine) {
    ASSERT_TRUE(count_ranks(engine, "before").ok());
    if (engine.rank() == engine.size() - 1) return engine.shutdown();
    const Status status = count_ranks(engine, "without it");
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kRankLeft) << status.error().text;
  });
}

// Of this process: descriptors and threads.
std::size_t entries(const char* folder) {
  DIR* const open = ::opendir(folder);
  std::size_t count = 0;
  while (::readdir(open) != nullptr) ++count;
  ::closedir(open);
  return count;
}

TEST_P(Ends, AHundredWorldsLeaveNothing) {
  const auto live = [] {
    World world = make();
    world.run([](Engine& engine) { ASSERT_TRUE(count_ranks(engine, "t").ok()); });
  };
  live();  // what is kept for the process
  const std::size_t descriptors = entries("/proc/self/fd");
  const std::size_t threads = entries("/proc/self/task");
  for (int i = 0; i < 100; ++i) live();
  EXPECT_EQ(entries("/proc/self/fd"), descriptors);
  EXPECT_EQ(entries("/proc/self/task"), threads);
}

TEST_P(Ends, TwoWorldsKnowNothingOfEachOther) {
  World first = make();
  World second = make();
  first.run([&](Engine& engine) {
    Engine& other = second[engine.rank()];
    for (int step = 0; step < 20; ++step) {
      std::vector<Tensor> here = {
          Tensor(DType::kFloat32, 3000, [&](auto i) { return value_of(engine.rank(), i); })};
      std::vector<Tensor> there = {Tensor(DType::kFloat32, 3000, [](auto) { return 1; })};
      auto handle = engine.submit(elementwise(spec(OpKind::kAllreduce, "t"), here, here));
      ASSERT_TRUE(handle.ok());
      ASSERT_TRUE(run(other, elementwise(spec(OpKind::kAllreduce, "t"), there, there)).ok());
      ASSERT_TRUE(engine.wait(handle.value()).ok());
      ASSERT_EQ(here[0], Tensor(DType::kFloat32, 3000,
                                [&](auto i) { return reduced(ReduceOp::kSum, engine.size(), i); }));
      ASSERT_EQ(there[0], Tensor(DType::kFloat32, 3000, [&](auto) { return engine.size(); }));
    }
  });
}

}  // namespace
}  // namespace ciranda::testing
