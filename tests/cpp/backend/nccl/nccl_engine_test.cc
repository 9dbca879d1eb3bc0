// NCCL's backend in whole Worlds: what the ranks negotiate runs on their devices, and gives what
// the native backend gives in memory of the CPU.
#include <gtest/gtest.h>

#include <cstring>

#include "backend/nccl/fake_device.h"
#include "backend/nccl/mock_nccl.h"
#include "core/backend/nccl/nccl_backend.h"
#include "core/kernels/reduce.h"
#include "core/wire/pair.h"
#include "engine/world.h"

namespace ciranda::testing {
namespace {

std::shared_ptr<MockNccl> mock;  // of the test that runs

const std::vector<BackendEntry> kMocked = {
    {.id = BackendId::kNccl,
     .make = [](BackendContext context) -> std::unique_ptr<Backend> {
       return std::make_unique<NcclBackend>(mock, std::move(context),
                                            NcclOptions{.look_ns = 2'000'000});
     },
     .facts = [] { return BackendFacts{.id = BackendId::kNccl, .available = true}; }}};

using Bytes = std::vector<std::byte>;

// Small whole numbers, which every dtype holds, and which sums and products keep.
Bytes numbers(DType dtype, std::size_t count, int rank) {
  Bytes bytes(count * dtype_bytes(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const int value = 1 + (static_cast<int>(i) + rank) % 2;
    std::byte* const to = bytes.data() + i * dtype_bytes(dtype);
    if (is_float8(dtype)) {
      const bool e4m3 = dtype == DType::kFloat8E4M3;
      *to = static_cast<std::byte>(value == 1 ? (e4m3 ? 0x38 : 0x3C) : 0x40);
    } else if (is_floating(dtype)) {
      const double number = value;
      kernels::cast(DType::kFloat64, reinterpret_cast<const std::byte*>(&number), dtype, to, 1);
    } else {
      std::memcpy(to, &value, dtype_bytes(dtype) < 4 ? 1 : 4);  // little endian
    }
  }
  return bytes;
}

// What one rank submits, and where the result goes.
struct Work {
  RequestSpec spec;
  std::vector<std::int64_t> rows = {};
  std::vector<Bytes> inputs = {};
  bool in_place = false;  // allreduce, broadcast
};

class NcclEngine : public ::testing::Test {
 protected:
  void SetUp() override { mock = std::make_shared<MockNccl>(); }
  void TearDown() override {
    EXPECT_EQ(mock->breaches(), std::vector<std::string>{});
    EXPECT_EQ(mock->alive(), 0);
    mock.reset();
  }

  static World world(int size) {
    return World(size, {.pace = {.spin_ns = 20'000}, .backends = kMocked});
  }

  static std::shared_ptr<FakeStream> stream_of(Engine& engine, int first_device = 0) {
    return std::make_shared<FakeStream>(first_device + engine.rank());
  }

  // Runs `work` on `backend`; the results, once they are there.
  static std::vector<Bytes> run(Engine& engine, Work work, BackendId backend,
                                const std::shared_ptr<FakeStream>& stream) {
    const std::size_t count = work.inputs.size();
    std::vector<Bytes> inputs = work.inputs;
    std::vector<Bytes> outputs = work.inputs;
    work.spec.backend = backend;
    const std::int64_t row_bytes =
        static_cast<std::int64_t>(dtype_bytes(work.spec.tensors[0].dtype));
    const OpKind kind = work.spec.kind;
    const bool fixed = kind == OpKind::kAllreduce || kind == OpKind::kBroadcast ||
                       kind == OpKind::kReduce || kind == OpKind::kSend;
    Submission submission;
    for (std::size_t i = 0; i < count; ++i) {
      submission.inputs.push_back(work.in_place ? outputs[i].data() : inputs[i].data());
      if (fixed) submission.outputs.push_back(outputs[i].data());
    }
    submission.spec = std::make_shared<RequestSpec>(work.spec);
    submission.rows = work.rows;
    submission.allocate = [&](std::size_t index, std::int64_t rows) -> Result<std::byte*> {
      outputs[index].resize(static_cast<std::size_t>(rows * row_bytes));
      return outputs[index].data();
    };
    FakeStream users(engine.rank());
    if (backend == BackendId::kNccl) {
      // The inputs get their values on the user's stream, after the submission.
      for (std::size_t i = 0; i < count; ++i) {
        Bytes& input = work.in_place ? outputs[i] : inputs[i];
        std::fill(input.begin(), input.end(), std::byte{0x7F});
        users.hold();
        users.run([&input, value = work.inputs[i]] { input = value; });
      }
      submission.device = {.stream = stream, .ready = users.record().value()};
    }
    auto handle = engine.submit(std::move(submission));
    users.release();
    EXPECT_TRUE(handle.ok()) << (handle.ok() ? "" : handle.error().text);
    if (!handle) return {};
    const Status status = engine.wait(handle.value());
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().text);
    if (!status.ok()) return {};
    const auto& finished = handle.value()->finished();
    EXPECT_EQ(finished != nullptr, backend == BackendId::kNccl);
    if (finished != nullptr) {
      EXPECT_TRUE(static_cast<const FakeEvent&>(*finished).wait());
    }
    return outputs;
  }

  // On both backends, and that they agree. `make(rank)` says what a rank does.
  static void expect_like_native(World& world, const std::function<Work(int rank)>& make) {
    world.run([&](Engine& engine) {
      const auto stream = stream_of(engine);
      const Work work = make(engine.rank());
      const auto want = run(engine, work, BackendId::kNative, nullptr);
      const auto got = run(engine, work, BackendId::kNccl, stream);
      EXPECT_EQ(got, want) << op_kind_name(work.spec.kind) << " of "
                           << to_string(work.spec.tensors[0]);
    });
  }

  static RequestSpec spec(OpKind kind, DType dtype, std::vector<std::int64_t> sizes) {
    RequestSpec spec{.name = "t", .kind = kind};
    if (facts_of(kind).has_root) spec.root = 1;
    for (const std::int64_t size : sizes) {
      spec.tensors.push_back({.dtype = dtype, .shape = {size}});
    }
    return spec;
  }
};

TEST_F(NcclEngine, EveryOpOfEveryDtypeGivesWhatTheNativeBackendGives) {
  World three = world(3);
  for (int dtype = 0; dtype <= static_cast<int>(DType::kFloat64); ++dtype) {
    for (int op = 0; op < kElementwiseOpCount; ++op) {
      for (const bool in_place : {false, true}) {
        expect_like_native(three, [&](int rank) {
          Work work{.spec = spec(OpKind::kAllreduce, static_cast<DType>(dtype), {257}),
                    .inputs = {numbers(static_cast<DType>(dtype), 257, rank)},
                    .in_place = in_place};
          work.spec.op = static_cast<ReduceOp>(op);
          // NCCL rounds an average's factor, 1/3, to a half; a sum of halves is exact.
          if (dtype_bytes(static_cast<DType>(dtype)) == 2 && work.spec.op == ReduceOp::kAverage) {
            work.spec.op = ReduceOp::kSum;
          }
          return work;
        });
      }
    }
  }
}

TEST_F(NcclEngine, ScaledSumsAndAveragesAreWhatTheNativeBackendGives) {
  World two = world(2);
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
      expect_like_native(two, [&](int rank) {
        Work work{.spec = spec(OpKind::kAllreduce, dtype, {100}),
                  .inputs = {numbers(dtype, 100, rank)}};
        work.spec.op = op;
        work.spec.prescale = 0.5;
        work.spec.postscale = 4.0;
        return work;
      });
    }
  }
}

TEST_F(NcclEngine, EveryKindMovesEveryDtype) {
  World three = world(3);
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    for (const bool in_place : {false, true}) {
      expect_like_native(three, [&](int rank) {
        return Work{.spec = spec(OpKind::kBroadcast, dtype, {100}),
                    .inputs = {numbers(dtype, 100, rank)},
                    .in_place = in_place};
      });
    }
    for (const bool equal : {true, false}) {
      expect_like_native(three, [&](int rank) {
        const std::int64_t rows = equal ? 40 : 40 * rank;  // rank 0: none
        return Work{.spec = spec(OpKind::kAllgather, dtype, {kAnyRows}),
                    .rows = {rows},
                    .inputs = {numbers(dtype, static_cast<std::size_t>(rows), rank)}};
      });
      expect_like_native(three, [&](int rank) {
        // Nothing from rank 1 to rank 2.
        const std::int64_t to_last = equal ? 5 : rank == 1 ? 0 : 9;
        return Work{.spec = spec(OpKind::kAlltoall, dtype, {kAnyRows}),
                    .rows = {5, 5, to_last},
                    .inputs = {numbers(dtype, static_cast<std::size_t>(10 + to_last), rank)}};
      });
    }
  }
}

TEST_F(NcclEngine, ReducescatterHandsOutEqualAndUnequalParts) {
  World three = world(3);
  for (const DType dtype : {DType::kInt32, DType::kBFloat16, DType::kFloat32}) {
    for (const std::int64_t rows : {300, 301, 2, 0}) {
      expect_like_native(three, [&](int rank) {
        return Work{.spec = spec(OpKind::kReducescatter, dtype, {rows}),
                    .inputs = {numbers(dtype, static_cast<std::size_t>(rows), rank)}};
      });
    }
  }
}

// The root is rank 1.
TEST_F(NcclEngine, OneRankGathersScattersAndReduces) {
  World three = world(3);
  expect_like_native(three, [&](int rank) {
    const std::int64_t rows = 40 * rank;  // rank 0: none
    return Work{.spec = spec(OpKind::kGather, DType::kFloat32, {kAnyRows}),
                .rows = {0, rows, 0},
                .inputs = {numbers(DType::kFloat32, static_cast<std::size_t>(rows), rank)}};
  });
  expect_like_native(three, [&](int rank) {
    const bool is_root = rank == 1;
    return Work{.spec = spec(OpKind::kScatter, DType::kFloat32, {kAnyRows}),
                .rows = is_root ? std::vector<std::int64_t>{5, 0, 9} : std::vector<std::int64_t>(3),
                .inputs = {numbers(DType::kFloat32, is_root ? 14 : 0, rank)}};
  });
  for (const std::int64_t rows : {300, 1, 0}) {
    for (const bool in_place : {false, true}) {
      expect_like_native(three, [&](int rank) {
        return Work{.spec = spec(OpKind::kReduce, DType::kFloat32, {rows}),
                    .inputs = {numbers(DType::kFloat32, static_cast<std::size_t>(rows), rank)},
                    .in_place = in_place};
      });
    }
  }
}

TEST_F(NcclEngine, OneRankSendsToAnother) {
  World two = world(2);
  for (const std::int64_t rows : {300, 1, 0}) {
    expect_like_native(two, [&](int rank) {
      Work work{.spec = spec(OpKind::kSend, DType::kFloat32, {rows}),
                .inputs = {numbers(DType::kFloat32, static_cast<std::size_t>(rows), rank)},
                .in_place = true};
      work.spec.group = pair_id({.from = 1, .to = 0});
      return work;
    });
  }
}

TEST_F(NcclEngine, Float8IsReducedByNcclAlone) {
  World two = world(2);
  two.run([&](Engine& engine) {
    const auto stream = stream_of(engine);
    for (const DType dtype : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      Work work{.spec = spec(OpKind::kAllreduce, dtype, {100}),
                .inputs = {numbers(dtype, 100, engine.rank())}};
      work.spec.op = ReduceOp::kMax;
      const auto got = run(engine, work, BackendId::kNccl, stream);
      EXPECT_EQ(got, std::vector<Bytes>{Bytes(100, std::byte{0x40})});
    }
  });
}

TEST_F(NcclEngine, AGroupIsFusedWithItsEmptyMembers) {
  World two = world(2);
  for (const OpKind kind : {OpKind::kAllreduce, OpKind::kBroadcast}) {
    expect_like_native(two, [&](int rank) {
      Work work{.spec = spec(kind, DType::kFloat32, {10, 0, 1000, 1}), .in_place = true};
      for (const std::size_t count : {10u, 0u, 1000u, 1u}) {
        work.inputs.push_back(numbers(DType::kFloat32, count, rank));
      }
      return work;
    });
  }
}

TEST_F(NcclEngine, AnotherBackendOnAnotherRankIsAMismatch) {
  World two = world(2);
  two.run([&](Engine& engine) {
    const auto stream = stream_of(engine);
    Bytes data = numbers(DType::kFloat32, 4, 0);
    RequestSpec mine = spec(OpKind::kAllreduce, DType::kFloat32, {4});
    Submission submission;
    if (engine.rank() == 1) {
      mine.backend = BackendId::kNccl;
      submission.device = {.stream = stream};
    }
    submission.spec = std::make_shared<RequestSpec>(mine);
    submission.inputs = {data.data()};
    submission.outputs = {data.data()};
    auto handle = engine.submit(std::move(submission));
    ASSERT_TRUE(handle.ok());
    EXPECT_EQ(engine.wait(handle.value()).error().code, ErrorCode::kMismatch);
  });
}

TEST_F(NcclEngine, TwoWorldsOnTwoSetsOfDevicesRunAtATime) {
  World some = world(2);
  World others = world(2);
  std::vector<std::thread> threads;
  for (World* each : {&some, &others}) {
    threads.emplace_back([each, first = each == &some ? 0 : 2] {
      each->run([&](Engine& engine) {
        const auto stream = stream_of(engine, first);
        for (int i = 0; i < 20; ++i) {
          Work work{.spec = spec(OpKind::kAllreduce, DType::kFloat32, {1000}),
                    .inputs = {numbers(DType::kFloat32, 1000, engine.rank())}};
          const auto got = run(engine, work, BackendId::kNccl, stream);
          ASSERT_EQ(got.size(), 1u);
          float first_sum = 0;
          std::memcpy(&first_sum, got[0].data(), sizeof first_sum);
          EXPECT_EQ(first_sum, 3.0f);
        }
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(NcclEngine, AnErrorOfTheDeviceEndsTheWorldThoughNobodyWaits) {
  World two = world(2);
  std::vector<std::shared_ptr<FakeStream>> streams(2);
  two.run([&](Engine& engine) {
    auto& stream = streams[static_cast<std::size_t>(engine.rank())];
    stream = stream_of(engine);
    Work work{.spec = spec(OpKind::kAllreduce, DType::kFloat32, {10}),
              .inputs = {numbers(DType::kFloat32, 10, engine.rank())}};
    (void)run(engine, work, BackendId::kNccl, stream);
    // From here on rank 1's device stands still, and no thread is in the engine.
    if (engine.rank() == 1) stream->hold();
    work.spec.name = "held";
    Bytes data = work.inputs[0];
    work.spec.backend = BackendId::kNccl;
    Submission submission;
    submission.spec = std::make_shared<RequestSpec>(work.spec);
    submission.inputs = {data.data()};
    submission.outputs = {data.data()};
    submission.device = {.stream = stream};
    auto handle = engine.submit(std::move(submission));
    ASSERT_TRUE(handle.ok());
    ASSERT_TRUE(engine.wait(handle.value()).ok());
    if (engine.rank() == 0) mock->fail_later(0, ncclSystemError);
    EXPECT_TRUE(wait_for(5'000'000'000, [] { return mock->alive() == 0; }));
    stream->release();
    EXPECT_TRUE(static_cast<const FakeEvent&>(*handle.value()->finished()).wait());
    Submission barrier;
    barrier.spec =
        std::make_shared<RequestSpec>(RequestSpec{.name = "end", .kind = OpKind::kBarrier});
    auto end = engine.submit(std::move(barrier));
    const Status status = end ? engine.wait(end.value()) : Status(end.error());
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().text.find("NCCL on rank 0: moving data: unhandled system error"),
              std::string::npos)
        << status.error().text;
  });
}

TEST_F(NcclEngine, ARankThatLeavesEndsWhatItsDeviceWaitsFor) {
  World two = world(2);
  std::vector<std::shared_ptr<FakeStream>> streams;
  for (auto& engine : two.engines) streams.push_back(stream_of(*engine));
  two.run([&](Engine& engine) {
    const auto& stream = streams[static_cast<std::size_t>(engine.rank())];
    Work work{.spec = spec(OpKind::kAllreduce, DType::kFloat32, {10}),
              .inputs = {numbers(DType::kFloat32, 10, engine.rank())}};
    (void)run(engine, work, BackendId::kNccl, stream);
    if (engine.rank() == 1) return engine.abort("rank 1 raised");
    work.spec.backend = BackendId::kNccl;
    Bytes data = work.inputs[0];
    Submission submission;
    submission.spec = std::make_shared<RequestSpec>(work.spec);
    submission.inputs = {data.data()};
    submission.outputs = {data.data()};
    submission.device = {.stream = stream};
    auto handle = engine.submit(std::move(submission));
    const Status status = handle ? engine.wait(handle.value()) : Status(handle.error());
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().text.find("rank 1 raised"), std::string::npos);
  });
}

}  // namespace
}  // namespace ciranda::testing
