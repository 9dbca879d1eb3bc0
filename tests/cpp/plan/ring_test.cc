// What could break: a block that misses a participant, a send before its bytes are there, two
// participants with other bits, a link that carries more than it must.
#include "core/plan/ring.h"

#include <gtest/gtest.h>

#include "plan/network.h"

namespace ciranda {
namespace {

constexpr Grain kFine = {.channels = 3, .stripe_bytes_min = 128, .segment_bytes = 192};
constexpr DType kTypes[] = {DType::kUInt8, DType::kFloat16, DType::kFloat32, DType::kInt64};

class RingOf : public ::testing::TestWithParam<int> {
 protected:
  int n() const { return GetParam(); }

  // Every dtype with another number of elements, from none to several segments a block.
  template <typename Check>
  void each_size(const Check& check) {
    std::uint32_t seed = 1;
    const auto most = static_cast<std::size_t>(n() > 16 ? 80 * n() : 1500);
    for (const std::size_t elements : {std::size_t{0}, std::size_t{1}, std::size_t{7}, most}) {
      for (const DType dtype : kTypes) check(dtype, elements, seed++);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Participants, RingOf, ::testing::Values(1, 2, 3, 4, 5, 8, 13, 64));

TEST_P(RingOf, AllreduceAveragesEveryElement) {
  each_size([&](DType dtype, std::size_t elements, std::uint32_t seed) {
    const Arithmetic average = {dtype, ReduceOp::kAverage, 1.0 / n()};
    expect_correct({.kind = OpKind::kAllreduce,
                    .participants = n(),
                    .payload_bytes = elements * dtype_bytes(dtype)},
                   Algorithm::kRing, kFine, average,
                   {.in_place = seed % 2 == 0, .connection_bytes = 100, .seed = seed});
  });
}

TEST_P(RingOf, ReducescatterSumsUnequalParts) {
  each_size([&](DType dtype, std::size_t elements, std::uint32_t seed) {
    Collective scatter = {.kind = OpKind::kReducescatter, .participants = n()};
    scatter.offsets =
        unequal_offsets(scatter, dtype_bytes(dtype), n() > 16 ? elements / 16 : elements, seed);
    expect_correct(scatter, Algorithm::kRing, kFine, {dtype},
                   {.connection_bytes = 100, .seed = seed});
  });
}

TEST_P(RingOf, AllgatherJoinsUnequalParts) {
  each_size([&](DType dtype, std::size_t elements, std::uint32_t seed) {
    Collective gather = {.kind = OpKind::kAllgather, .participants = n()};
    gather.offsets =
        unequal_offsets(gather, dtype_bytes(dtype), n() > 16 ? elements / 16 : elements, seed);
    expect_correct(gather, Algorithm::kRing, kFine, {dtype},
                   {.connection_bytes = 100, .seed = seed});
  });
}

TEST_P(RingOf, BroadcastPassesTheRootOn) {
  each_size([&](DType dtype, std::size_t elements, std::uint32_t seed) {
    expect_correct({.kind = OpKind::kBroadcast,
                    .participants = n(),
                    .root = static_cast<int>(seed) % n(),
                    .payload_bytes = elements * dtype_bytes(dtype)},
                   Algorithm::kRing, kFine, {dtype},
                   {.in_place = seed % 2 == 0, .connection_bytes = 100, .seed = seed});
  });
}

TEST(Ring, WorksOverConnectionsOfOneByte) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    const NetworkOptions tight = {.connection_bytes = 1, .seed = seed};
    expect_correct({.kind = OpKind::kAllreduce, .participants = 3, .payload_bytes = 1000},
                   Algorithm::kRing, kFine, {}, tight);
    Collective scatter = {.kind = OpKind::kReducescatter, .participants = 5};
    scatter.offsets = unequal_offsets(scatter, 1, 700, seed);
    expect_correct(scatter, Algorithm::kRing, kFine, {}, tight);
  }
}

TEST(Ring, AllreduceSendsNoMoreThanItMust) {
  for (const int n : {2, 3, 7, 16, 64}) {
    const std::uint64_t payload = 64 * 5 * static_cast<std::uint64_t>(n);
    const Collective allreduce = {
        .kind = OpKind::kAllreduce, .participants = n, .payload_bytes = payload};
    for (const Schedule& schedule : schedules_of(allreduce, Algorithm::kRing, kFine)) {
      std::uint64_t sent = 0;
      for (int c = 0; c < schedule.channels(); ++c) {
        for (std::uint32_t i = 0; i < schedule.steps(); ++i) {
          sent += schedule.step(c, i).send.piece.bytes;
          EXPECT_EQ(schedule.step(c, i).send.to, (schedule.layout().self + 1) % n);
        }
      }
      EXPECT_EQ(sent, 2 * (payload - payload / static_cast<std::uint64_t>(n)));
    }
  }
}

// Reading and reducing overlap only if a segment may leave before its whole block has arrived.
TEST(Ring, ASegmentLeavesWhenItsOwnOneHasArrived) {
  const Schedule schedule(
      {.kind = OpKind::kAllreduce, .participants = 4, .payload_bytes = 4 * 4 * 64}, 0,
      Algorithm::kRing, {.segment_bytes = 64});
  ASSERT_EQ(schedule.steps(), 6u * 4u);
  for (std::uint32_t i = 4; i < schedule.steps(); ++i) {
    const Send send = schedule.step(0, i).send;
    EXPECT_EQ(send.after_receives, i - 3);
    const Piece arrived = schedule.step(0, i - 4).receive.piece;
    EXPECT_EQ(send.piece.begin, arrived.begin);
    EXPECT_EQ(send.piece.bytes, arrived.bytes);
  }
}

TEST(Ring, PrintsItsSteps) {
  const auto table = [](const Collective& collective, int self, Grain grain = {}) {
    return to_string(Schedule(collective, self, Algorithm::kRing, grain));
  };
  EXPECT_EQ(table({.participants = 2, .payload_bytes = 128}, 0),
            R"(allreduce, ring, participant 0 of 2
0.0 | in[0,64) to 1, chunks>=1 | out[64,128) = from 1 + in[64,128), complete, chunks>=2
0.1 | out[64,128) to 1, receives>=1 | out[0,64) = from 1
)");
  EXPECT_EQ(table({.participants = 3, .payload_bytes = 192}, 1),
            R"(allreduce, ring, participant 1 of 3
0.0 | in[64,128) to 2, chunks>=1 | out[0,64) = from 0 + in[0,64), chunks>=2
0.1 | out[0,64) to 2, receives>=1 | out[128,192) = from 0 + in[128,192), complete, chunks>=3
0.2 | out[128,192) to 2, receives>=2 | out[64,128) = from 0
0.3 | out[64,128) to 2, receives>=3 | out[0,64) = from 0
)");
  EXPECT_EQ(table({.participants = 2, .payload_bytes = 512}, 0,
                  {.channels = 2, .stripe_bytes_min = 64, .segment_bytes = 64}),
            R"(allreduce, ring, participant 0 of 2
0.0 | in[0,64) to 1, chunks>=1 | out[256,320) = from 1 + in[256,320), complete, chunks>=3
0.1 | in[64,128) to 1, chunks>=2 | out[320,384) = from 1 + in[320,384), complete, chunks>=4
0.2 | out[256,320) to 1, receives>=1 | out[0,64) = from 1
0.3 | out[320,384) to 1, receives>=2 | out[64,128) = from 1
1.0 | in[128,192) to 1, chunks>=1 | out[384,448) = from 1 + in[384,448), complete, chunks>=3
1.1 | in[192,256) to 1, chunks>=2 | out[448,512) = from 1 + in[448,512), complete, chunks>=4
1.2 | out[384,448) to 1, receives>=1 | out[128,192) = from 1
1.3 | out[448,512) to 1, receives>=2 | out[192,256) = from 1
)");
  // Participant 1 has no part.
  EXPECT_EQ(table({.kind = OpKind::kReducescatter, .participants = 3, .offsets = {0, 8, 8, 20}}, 2),
            R"(reducescatter, ring, participant 2 of 3
0.0 | - | scratch[0,8) = from 1 + in[0,8), chunks>=2
0.1 | scratch[0,8) to 0, receives>=1 | out[0,12) = from 1 + in[8,20), complete, chunks>=3
)");
  EXPECT_EQ(table({.kind = OpKind::kAllgather, .participants = 3, .offsets = {0, 8, 8, 20}}, 0),
            R"(allgather, ring, participant 0 of 3
0.0 | in[0,8) to 1 | out[8,20) = from 2
0.1 | out[8,20) to 1, receives>=1 | -
0.2 | in[0,8) to 0 | out[0,8) = from 0
)");
  EXPECT_EQ(table({.kind = OpKind::kBroadcast, .participants = 3, .root = 1, .payload_bytes = 128},
                  2, {.segment_bytes = 64}),
            R"(broadcast, ring, participant 2 of 3
0.0 | out[0,64) to 0, receives>=1 | out[0,64) = from 1
0.1 | out[64,128) to 0, receives>=2 | out[64,128) = from 1
0.2 | - | -
0.3 | - | -
)");
}

}  // namespace
}  // namespace ciranda
