// What could break: bits that depend on timing or on the participant, pieces off the elements,
// tables that people read.
#include "core/plan/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>

#include "plan/network.h"
#include "plan/rounded_sum.h"

namespace ciranda {
namespace {

constexpr Grain kFine = {.channels = 2, .stripe_bytes_min = 128, .segment_bytes = 192};

// Floats whose sum depends on the order, with zeros of both signs and what is not a number.
Bytes any_floats(std::size_t count, std::mt19937& random) {
  Bytes bytes(count * sizeof(float));
  for (std::size_t i = 0; i < count; ++i) {
    float value = std::ldexp(static_cast<float>(random()) - 2e9f, static_cast<int>(random() % 60));
    if (i % 7 == 0) value = random() % 2 == 0 ? 0.0f : -0.0f;
    if (random() % 50 == 0) value = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(bytes.data() + i * sizeof(float), &value, sizeof(float));
  }
  return bytes;
}

TEST(Schedule, GivesTheSameBitsEverywhereAndInEveryRun) {
  std::mt19937 random(7);
  for (const int n : {2, 3, 5, 8, 11, 64}) {
    const std::size_t floats = n == 64 ? 2100 : 700;
    std::vector<Bytes> inputs;
    for (int p = 0; p < n; ++p) inputs.push_back(any_floats(floats, random));
    const Collective allreduce = {.participants = n, .payload_bytes = floats * sizeof(float)};
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kShort}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kProduct}) {
        const auto run = [&](std::uint32_t seed) {
          const Grain grain = {.channels = 2, .stripe_bytes_min = 64, .segment_bytes = 128};
          return execute(schedules_of(allreduce, algorithm, grain), inputs, output_bytes(allreduce),
                         {DType::kFloat32, op},
                         {.in_place = seed % 2 == 0, .connection_bytes = 300, .seed = seed});
        };
        const Bytes first = run(1).front();
        for (const std::uint32_t seed : {1u, 2u, 3u}) {
          for (const Bytes& output : run(seed)) EXPECT_TRUE(output == first) << n;
        }
      }
    }
  }
}

// Messages of 16 bits, float32 sums: what a plain loop over the participants gives, on all of them.
TEST(Schedule, RoundsMessagesAsAPlainLoopDoes) {
  std::uint32_t seed = 1;
  for (const int n : {2, 3, 4, 5, 8, 13, 64}) {
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kShort}) {
      for (const DType wire_dtype : {DType::kFloat16, DType::kBFloat16}) {
        const std::size_t elements = n > 16 ? 1100 : 3000;
        const Collective allreduce = {
            .participants = n, .payload_bytes = elements * sizeof(float), .narrowing = 2};
        std::vector<std::vector<float>> numbers;
        std::vector<Bytes> inputs;
        for (int p = 0; p < n; ++p) {
          numbers.push_back(testing::odd_numbers(elements, seed++));
          const auto bytes = std::as_bytes(std::span(numbers.back()));
          inputs.emplace_back(bytes.begin(), bytes.end());
        }
        const double postscale = 1.0 / n;
        const std::vector<Bytes> outputs =
            execute(schedules_of(allreduce, algorithm, kFine), inputs, output_bytes(allreduce),
                    {.dtype = DType::kFloat32, .postscale = postscale, .wire_dtype = wire_dtype},
                    {.in_place = seed % 2 == 0, .connection_bytes = 300, .seed = seed});
        const auto expected = testing::RoundedSum(wire_dtype, postscale)(numbers, algorithm);
        for (const Bytes& output : outputs) {
          ASSERT_EQ(std::memcmp(output.data(), expected.data(), output.size()), 0)
              << n << " participants, " << dtype_name(wire_dtype);
        }
      }
    }
  }
}

TEST(Schedule, MessagesOfHalvesTakeHalfTheBytes) {
  const Schedule schedule({.participants = 3, .payload_bytes = 4000, .narrowing = 2}, 0,
                          Algorithm::kRing, kFine);
  for (std::uint32_t i = 0; i < schedule.steps(); ++i) {
    const Piece piece = schedule.step(0, i).send.piece;
    EXPECT_EQ(2 * schedule.message_bytes(piece), piece.bytes);
  }
  EXPECT_NE(to_string(schedule).find("participant 0 of 3, messages of 1/2 the bytes\n"),
            std::string::npos);
}

// Both ends of an exchange add their own and the other's; a ring's only ever the received one.
TEST(Schedule, KnowsItsExchanges) {
  for (const int n : {2, 3, 4, 6}) {
    const Collective allreduce = {.participants = n, .payload_bytes = 4000};
    for (const Schedule& schedule : schedules_of(allreduce, Algorithm::kRing, kFine)) {
      for (std::uint32_t i = 0; i < schedule.steps(); ++i) {
        EXPECT_FALSE(exchanges(schedule.step(0, i))) << n;
      }
    }
    const Schedule doubling(allreduce, 0, Algorithm::kShort, {.segment_bytes = 1 << 20});
    int exchanged = 0;
    for (std::uint32_t i = 0; i < doubling.steps(); ++i) {
      exchanged += exchanges(doubling.step(0, i)) ? 1 : 0;
    }
    EXPECT_EQ(exchanged, n < 4 ? 1 : 2) << n;
  }
}

TEST(Schedule, RunsWithAnyNumberOfParticipants) {
  for (int n = 1; n <= 64; n += n < 32 ? 1 : 8) {
    const auto seed = static_cast<std::uint32_t>(n);
    const NetworkOptions options = {.connection_bytes = 64, .seed = seed};
    const Arithmetic average = {DType::kInt32, ReduceOp::kAverage, 1.0 / n};
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kShort}) {
      const std::uint64_t payload = 68 * static_cast<std::uint64_t>(n);
      expect_correct({.participants = n, .payload_bytes = payload}, algorithm, {}, average,
                     options);
      expect_correct(
          {.kind = OpKind::kBroadcast, .participants = n, .root = n / 2, .payload_bytes = payload},
          algorithm, {}, average, options);
      for (const OpKind kind : {OpKind::kAllgather, OpKind::kReducescatter, OpKind::kAlltoall}) {
        const bool ring = algorithm == Algorithm::kRing;
        if (kind != OpKind::kAllgather && ring != (kind == OpKind::kReducescatter)) continue;
        Collective parts = {.kind = kind, .participants = n};
        parts.offsets = unequal_offsets(parts, 4, 9, seed);
        expect_correct(parts, algorithm, {}, average, options);
      }
    }
  }
}

TEST(Schedule, ShortStripesLeaveChannelsUnused) {
  const Grain grain = {.channels = 4, .stripe_bytes_min = 1000, .segment_bytes = 1 << 20};
  const auto channels = [&](std::uint64_t payload) {
    return Schedule({.participants = 2, .payload_bytes = payload}, 0, Algorithm::kRing, grain)
        .channels();
  };
  EXPECT_EQ(channels(1), 1);
  EXPECT_EQ(channels(3900), 1);  // half of it is the block
  EXPECT_EQ(channels(4100), 2);
  EXPECT_EQ(channels(1 << 20), 4);
}

TEST(Schedule, NothingToMoveTakesNoSteps) {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kShort}) {
    EXPECT_EQ(Schedule({.participants = 3}, 0, algorithm).steps(), 0u);
  }
}

TEST(Schedule, ChunksComeInTheOrderInWhichStepsReadThem) {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kShort}) {
    const Schedule schedule({.participants = 4, .payload_bytes = 4096}, 1, algorithm,
                            {.segment_bytes = 256});
    std::uint64_t bytes = 0;
    for (std::uint32_t k = 0; k < schedule.chunks(); ++k) bytes += schedule.chunk(0, k).bytes;
    EXPECT_EQ(bytes, 4096u) << "each byte is reduced inside the host once";
    for (std::uint32_t i = 0; i < schedule.steps(); ++i) {
      const auto [send, receive] = schedule.step(0, i);
      const auto last_chunk_is = [&](const Piece& piece, std::uint32_t after_chunks) {
        if (piece.space != Space::kInput || piece.bytes == 0) return;
        ASSERT_GE(after_chunks, 1u);
        EXPECT_EQ(schedule.chunk(0, after_chunks - 1).begin, piece.begin);
        EXPECT_EQ(schedule.chunk(0, after_chunks - 1).bytes, piece.bytes);
      };
      last_chunk_is(send.piece, send.after_chunks);
      last_chunk_is(receive.own, receive.after_chunks);
    }
  }
}

}  // namespace
}  // namespace ciranda
