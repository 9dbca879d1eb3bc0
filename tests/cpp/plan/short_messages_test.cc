// What could break: a participant that the fold forgets, operands in another order on one side, a
// payload overwritten while it is being sent.
#include "core/plan/short_messages.h"

#include <gtest/gtest.h>

#include "plan/network.h"

namespace ciranda {
namespace {

constexpr Grain kFine = {.channels = 2, .stripe_bytes_min = 128, .segment_bytes = 192};
constexpr DType kTypes[] = {DType::kUInt8, DType::kFloat16, DType::kFloat32, DType::kInt64};

class ShortMessagesOf : public ::testing::TestWithParam<int> {
 protected:
  int n() const { return GetParam(); }

  template <typename Check>
  void each_size(const Check& check) {
    std::uint32_t seed = 1;
    for (const std::size_t elements : {0ul, 1ul, 7ul, n() > 16 ? 40ul : 300ul}) {
      for (const DType dtype : kTypes) check(dtype, elements, seed++);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Participants, ShortMessagesOf,
                         ::testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 64));

TEST_P(ShortMessagesOf, AllreduceAveragesEveryElement) {
  each_size([&](DType dtype, std::size_t elements, std::uint32_t seed) {
    const Arithmetic average = {dtype, ReduceOp::kAverage, 1.0 / n()};
    expect_correct({.kind = OpKind::kAllreduce,
                    .participants = n(),
                    .payload_bytes = elements * dtype_bytes(dtype)},
                   Algorithm::kShort, kFine, average,
                   {.in_place = seed % 2 == 0, .connection_bytes = 50, .seed = seed});
  });
}

TEST_P(ShortMessagesOf, BroadcastReachesEverybodyFromAnyRoot) {
  each_size([&](DType dtype, std::size_t elements, std::uint32_t seed) {
    expect_correct({.kind = OpKind::kBroadcast,
                    .participants = n(),
                    .root = static_cast<int>(seed) % n(),
                    .payload_bytes = elements * dtype_bytes(dtype)},
                   Algorithm::kShort, kFine, {dtype},
                   {.in_place = seed % 2 == 0, .connection_bytes = 50, .seed = seed});
  });
}

TEST_P(ShortMessagesOf, AllgatherAndAlltoallMoveUnequalParts) {
  each_size([&](DType dtype, std::size_t elements, std::uint32_t seed) {
    for (const OpKind kind : {OpKind::kAllgather, OpKind::kAlltoall}) {
      Collective exchange = {.kind = kind, .participants = n()};
      exchange.offsets = unequal_offsets(exchange, dtype_bytes(dtype), elements, seed);
      expect_correct(exchange, Algorithm::kShort, kFine, {dtype},
                     {.connection_bytes = 50, .seed = seed});
    }
  });
}

// Who may have heard of whom follows from the counts: a receive brings what its sender had heard
// of before the send, and a send waits for nothing else.
TEST_P(ShortMessagesOf, BarrierLeavesWhenAllHaveCome) {
  const std::vector<Schedule> schedules =
      schedules_of({.kind = OpKind::kBarrier, .participants = n()}, Algorithm::kShort, {});
  expect_matched(schedules);
  execute(schedules, std::vector<Bytes>(schedules.size()),
          std::vector<std::size_t>(schedules.size(), 0), {}, {.connection_bytes = 1});
  // heard[r][p]: of whom p knows after r receives.
  const auto participants = static_cast<std::size_t>(n());
  std::vector<std::vector<std::uint64_t>> heard(1);
  for (std::size_t p = 0; p < participants; ++p) heard[0].push_back(1ull << p);
  for (std::uint32_t i = 0; i < schedules.front().steps(); ++i) {
    heard.push_back(heard.back());
    for (std::size_t p = 0; p < participants; ++p) {
      const auto from = static_cast<std::size_t>(schedules[p].step(0, i).receive.from);
      const Send send = schedules[from].step(0, i).send;
      heard.back()[p] |= heard[send.after_receives][from];
    }
  }
  for (const std::uint64_t all : heard.back()) EXPECT_EQ(all, ~0ull >> (64 - n()));
}

TEST(ShortMessages, TwoParticipantsAreDoneAfterOneMessageEach) {
  const Schedule schedule({.participants = 2, .payload_bytes = 1000}, 0, Algorithm::kShort);
  ASSERT_EQ(schedule.steps(), 1u);
  EXPECT_EQ(schedule.step(0, 0).send.piece.bytes, 1000u);
  EXPECT_EQ(schedule.step(0, 0).send.after_receives, 0u);
}

TEST(ShortMessages, WorksOverConnectionsOfOneByte) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    expect_correct({.participants = 7, .payload_bytes = 333}, Algorithm::kShort, kFine, {},
                   {.in_place = true, .connection_bytes = 1, .seed = seed});
  }
}

TEST(ShortMessages, PrintsItsSteps) {
  const auto table = [](const Collective& collective, int self) {
    return to_string(Schedule(collective, self, Algorithm::kShort));
  };
  EXPECT_EQ(table({.participants = 2, .payload_bytes = 8}, 0),
            R"(allreduce, short, participant 0 of 2
0.0 | in[0,8) to 1, chunks>=1 | out[0,8) = in[0,8) + from 1, complete, sends>=1, chunks>=1
)");
  EXPECT_EQ(table({.participants = 2, .payload_bytes = 8}, 1),
            R"(allreduce, short, participant 1 of 2
0.0 | in[0,8) to 0, chunks>=1 | out[0,8) = from 0 + in[0,8), complete, sends>=1, chunks>=1
)");
  EXPECT_EQ(table({.participants = 3, .payload_bytes = 8}, 0),
            R"(allreduce, short, participant 0 of 3
0.0 | - | out[0,8) = in[0,8) + from 2, chunks>=1
0.1 | out[0,8) to 1, receives>=1, chunks>=1 | out[0,8) = out[0,8) + from 1, complete, sends>=2, chunks>=1
0.2 | out[0,8) to 2, receives>=2 | -
)");
  EXPECT_EQ(table({.participants = 3, .payload_bytes = 8}, 2),
            R"(allreduce, short, participant 2 of 3
0.0 | in[0,8) to 0, chunks>=1 | -
0.1 | - | -
0.2 | - | out[0,8) = from 0
)");
  EXPECT_EQ(
      table({.kind = OpKind::kBroadcast, .participants = 3, .root = 1, .payload_bytes = 8}, 1),
      R"(broadcast, short, participant 1 of 3
0.0 | in[0,8) to 2 | -
0.1 | in[0,8) to 0, receives>=1 | -
0.2 | in[0,8) to 1 | out[0,8) = from 1
)");
  EXPECT_EQ(
      table({.kind = OpKind::kAlltoall, .participants = 2, .offsets = {0, 4, 12, 0, 16, 20}}, 0),
      R"(alltoall, short, participant 0 of 2
0.0 | in[4,12) to 1 | out[4,20) = from 1
0.1 | in[0,4) to 0 | out[0,4) = from 0
)");
  EXPECT_EQ(table({.kind = OpKind::kBarrier, .participants = 3}, 1),
            R"(barrier, short, participant 1 of 3
0.0 | scratch[0,1) to 2 | scratch[1,2) = from 0
0.1 | scratch[0,1) to 0, receives>=1 | scratch[1,2) = from 2
)");
}

}  // namespace
}  // namespace ciranda
