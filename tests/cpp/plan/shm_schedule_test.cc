// What could break: a byte that no round moves, one that two rounds move, a slot overrun.
#include "core/plan/shm_schedule.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace ciranda {
namespace {

// Executes a schedule on bytes, all ranks in lock step, with "reduction" = sum modulo 256.
class Machine {
 public:
  Machine(StagedShape shape, std::uint64_t slot_bytes)
      : shape_(shape), slot_bytes_(slot_bytes), schedule_(std::move(shape), slot_bytes) {}

  std::vector<std::vector<std::uint8_t>> run(const std::vector<std::vector<std::uint8_t>>& inputs,
                                             const std::vector<std::size_t>& output_bytes) {
    const auto ranks = static_cast<std::size_t>(shape_.ranks);
    std::vector<std::vector<std::uint8_t>> outputs(ranks);
    for (std::size_t r = 0; r < ranks; ++r) outputs[r].assign(output_bytes[r], 0xEE);
    std::vector<std::vector<int>> writes(ranks);
    for (std::size_t r = 0; r < ranks; ++r) writes[r].assign(output_bytes[r], 0);
    for (std::uint64_t k = 0; k < schedule_.rounds(); ++k) {
      std::vector<std::vector<std::uint8_t>> slots(ranks,
                                                   std::vector<std::uint8_t>(slot_bytes_, 0xAA));
      std::vector<StagedRound> rounds(ranks);
      for (std::size_t r = 0; r < ranks; ++r) {
        schedule_.round(static_cast<Rank>(r), k, rounds[r]);
        for (const CopyIn& copy : rounds[r].copy_in) {
          for (std::uint64_t i = 0; i < copy.bytes; ++i) {
            slots[r].at(copy.slot_offset + i) = inputs[r].at(copy.user_offset + i);
          }
        }
      }
      auto results = slots;
      for (std::size_t r = 0; r < ranks; ++r) {
        if (!rounds[r].reduce) continue;
        const ReduceSlice& slice = *rounds[r].reduce;
        for (std::uint64_t i = 0; i < slice.bytes; ++i) {
          std::uint8_t sum = 0;
          for (std::size_t peer = 0; peer < ranks; ++peer) {
            sum = static_cast<std::uint8_t>(sum + (peer == r
                                                       ? inputs[r].at(slice.user_in_offset + i)
                                                       : slots[peer].at(slice.slot_offset + i)));
          }
          outputs[r].at(slice.user_out_offset + i) = sum;
          ++writes[r].at(slice.user_out_offset + i);
          if (slice.publish) results[r].at(slice.slot_offset + i) = sum;
        }
      }
      for (std::size_t r = 0; r < ranks; ++r) {
        for (const CopyOut& copy : rounds[r].copy_out) {
          const auto from = static_cast<std::size_t>(copy.from);
          for (std::uint64_t i = 0; i < copy.bytes; ++i) {
            const auto& source = rounds[r].copy_out_after_reduce ? results : slots;
            outputs[r].at(copy.user_offset + i) = from == r ? inputs[r].at(copy.slot_offset + i)
                                                            : source[from].at(copy.slot_offset + i);
            ++writes[r].at(copy.user_offset + i);
          }
        }
      }
    }
    for (const auto& counts : writes) {
      for (const int count : counts) EXPECT_EQ(count, 1) << "each output byte is written once";
    }
    return outputs;
  }

 private:
  StagedShape shape_;
  std::uint64_t slot_bytes_;
  StagedSchedule schedule_;
};

std::vector<std::uint8_t> random_bytes(std::size_t count, std::mt19937& random) {
  std::vector<std::uint8_t> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

class StagedScheduleOnRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, StagedScheduleOnRanks, ::testing::Values(1, 2, 3, 5, 8));

constexpr std::uint64_t kSlot = 70'000;  // not a multiple of anything

TEST_P(StagedScheduleOnRanks, AllreduceSumsEveryByteOnce) {
  const auto n = static_cast<std::size_t>(GetParam());
  std::mt19937 random(1);
  for (const std::size_t bytes : {1ul, 63ul, 8192ul, 8193ul, 65'537ul, 300'001ul}) {
    std::vector<std::vector<std::uint8_t>> inputs;
    std::vector<std::uint8_t> sum(bytes, 0);
    for (std::size_t r = 0; r < n; ++r) {
      inputs.push_back(random_bytes(bytes, random));
      for (std::size_t i = 0; i < bytes; ++i) {
        sum[i] = static_cast<std::uint8_t>(sum[i] + inputs[r][i]);
      }
    }
    Machine machine(
        {.kind = OpKind::kAllreduce, .ranks = GetParam(), .payload_bytes = bytes, .offsets = {}},
        kSlot);
    const auto outputs = machine.run(inputs, std::vector<std::size_t>(n, bytes));
    for (const auto& output : outputs) EXPECT_EQ(output, sum) << bytes;
  }
}

TEST_P(StagedScheduleOnRanks, BroadcastCopiesTheRoot) {
  const auto n = static_cast<std::size_t>(GetParam());
  std::mt19937 random(2);
  for (const std::size_t bytes : {1ul, 200'000ul}) {
    std::vector<std::vector<std::uint8_t>> inputs;
    for (std::size_t r = 0; r < n; ++r) inputs.push_back(random_bytes(bytes, random));
    Machine machine({.kind = OpKind::kBroadcast,
                     .ranks = GetParam(),
                     .root = GetParam() - 1,
                     .payload_bytes = bytes,
                     .offsets = {}},
                    kSlot);
    const auto outputs = machine.run(inputs, std::vector<std::size_t>(n, bytes));
    for (const auto& output : outputs) EXPECT_EQ(output, inputs[n - 1]);
  }
}

TEST_P(StagedScheduleOnRanks, GatherScatterAndExchangeUnequalParts) {
  const auto n = static_cast<std::size_t>(GetParam());
  std::mt19937 random(3);
  for (int trial = 0; trial < 5; ++trial) {
    std::vector<std::size_t> parts;
    std::vector<std::uint64_t> offsets = {0};
    for (std::size_t r = 0; r < n; ++r) {
      parts.push_back(trial == 0 ? 0 : random() % 200'000);
      offsets.push_back(offsets.back() + parts.back());
    }
    std::vector<std::vector<std::uint8_t>> own;
    std::vector<std::uint8_t> joined;
    for (std::size_t r = 0; r < n; ++r) {
      own.push_back(random_bytes(parts[r], random));
      joined.insert(joined.end(), own[r].begin(), own[r].end());
    }
    Machine gather({.kind = OpKind::kAllgather, .ranks = GetParam(), .offsets = offsets}, kSlot);
    for (const auto& output : gather.run(own, std::vector<std::size_t>(n, joined.size()))) {
      EXPECT_EQ(output, joined);
    }
    const std::vector<std::vector<std::uint8_t>> same(n, joined);
    Machine scatter({.kind = OpKind::kReducescatter, .ranks = GetParam(), .offsets = offsets},
                    kSlot);
    const auto pieces = scatter.run(same, parts);
    for (std::size_t r = 0; r < n; ++r) {
      for (std::size_t i = 0; i < parts[r]; ++i) {
        ASSERT_EQ(pieces[r][i], static_cast<std::uint8_t>(n * own[r][i]));
      }
    }
    // alltoall: rank s sends (s + d) * unit bytes to d.
    std::vector<std::uint64_t> matrix;
    std::vector<std::vector<std::uint8_t>> inputs;
    std::vector<std::size_t> received(n, 0);
    const std::size_t unit = trial == 0 ? 0 : random() % 30'000;
    for (std::size_t s = 0; s < n; ++s) {
      std::uint64_t at = 0;
      for (std::size_t d = 0; d < n; ++d) {
        matrix.push_back(at);
        at += (s + d) * unit;
        received[d] += (s + d) * unit;
      }
      matrix.push_back(at);
      inputs.push_back(random_bytes(at, random));
    }
    Machine exchange({.kind = OpKind::kAlltoall, .ranks = GetParam(), .offsets = matrix}, kSlot);
    const auto outputs = exchange.run(inputs, received);
    for (std::size_t d = 0; d < n; ++d) {
      std::size_t at = 0;
      for (std::size_t s = 0; s < n; ++s) {
        for (std::size_t i = 0; i < (s + d) * unit; ++i, ++at) {
          ASSERT_EQ(outputs[d][at], inputs[s][matrix[s * (n + 1) + d] + i]);
        }
      }
    }
  }
}

TEST(StagedSchedule, NothingToMoveTakesNoRounds) {
  EXPECT_EQ(StagedSchedule({.kind = OpKind::kAllreduce, .ranks = 2, .offsets = {}}, kSlot).rounds(),
            0u);
}

}  // namespace
}  // namespace ciranda
