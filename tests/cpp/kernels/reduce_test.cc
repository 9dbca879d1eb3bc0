// What could break: a variant that rounds, wraps or orders differently from the others, so that
// two hosts (or two releases) train different models from the same data.
#include "core/kernels/reduce.h"

#include <gtest/gtest.h>

#include <functional>

#include "kernels/oracle.h"

namespace ciranda::kernels {
namespace {

using oracle::Bytes;
using oracle::bytes_of;
using oracle::Scales;
using oracle::values_of;
using Counts = std::initializer_list<std::size_t>;

constexpr std::uint64_t kSeed = 0x51c3;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::string case_name(DType dtype, ReduceOp op, Scales scales, std::size_t ranks,
                      std::size_t count) {
  return std::string(reduce_op_name(op)) + " of " + std::to_string(count) + " " +
         std::string(dtype_name(dtype)) + " over " + std::to_string(ranks) + " ranks, scales " +
         std::to_string(scales.pre) + " and " + std::to_string(scales.post) + ", seed " +
         std::to_string(kSeed);
}

void for_every_type_and_op(const std::function<void(DType, ReduceOp)>& check) {
  for (int dtype = 0; dtype <= static_cast<int>(DType::kFloat64); ++dtype) {
    for (int op = 0; op < kElementwiseOpCount; ++op) {
      check(static_cast<DType>(dtype), static_cast<ReduceOp>(op));
    }
  }
}

class Reduce : public testing::TestWithParam<const Variant*> {
 protected:
  static Bytes run_with(const Variant& variant, DType dtype, ReduceOp op, Scales scales,
                        const std::vector<Bytes>& inputs) {
    std::vector<const std::byte*> from;
    for (const Bytes& input : inputs) from.push_back(input.data());
    Bytes result(inputs[0].size());
    std::byte* const to[] = {result.data()};
    run_pointers(variant, dtype, op, scales, from, to, result.size() / dtype_bytes(dtype));
    return result;
  }

  static void run_pointers(const Variant& variant, DType dtype, ReduceOp op, Scales scales,
                           std::span<const std::byte* const> from, std::span<std::byte* const> to,
                           std::size_t count) {
    variant.loops->reduce({.dtype = dtype,
                           .op = op,
                           .prescale = scales.pre,
                           .postscale = scales.post,
                           .inputs = from.data(),
                           .input_count = from.size(),
                           .outputs = to.data(),
                           .output_count = to.size(),
                           .count = count});
  }

  static Bytes run(DType dtype, ReduceOp op, Scales scales, const std::vector<Bytes>& inputs) {
    return run_with(*GetParam(), dtype, op, scales, inputs);
  }

  // Of one element per rank.
  template <class T>
  static T run_one(DType dtype, ReduceOp op, const std::vector<T>& ranks, Scales scales = {}) {
    std::vector<Bytes> inputs;
    for (T value : ranks) inputs.push_back(bytes_of(std::vector<T>{value}));
    return values_of<T>(run(dtype, op, scales, inputs))[0];
  }

  static void expect_oracle(DType dtype, ReduceOp op, Scales scales,
                            const std::vector<Bytes>& inputs) {
    const Bytes want = oracle::reduce(dtype, op, scales, inputs);
    ASSERT_TRUE(oracle::same(dtype, run(dtype, op, scales, inputs), want))
        << case_name(dtype, op, scales, inputs.size(), want.size() / dtype_bytes(dtype));
  }
};
INSTANTIATE_TEST_SUITE_P(Variants, Reduce, testing::ValuesIn(oracle::available_variants()),
                         oracle::variant_name);

TEST_P(Reduce, EqualsTheNaiveLoopsForEveryTypeOpRankCountScaleAndCount) {
  std::mt19937_64 random(kSeed);
  for_every_type_and_op([&](DType dtype, ReduceOp op) {
    for (const Scales scales :
         {Scales{}, Scales{.post = 1.0 / 3}, Scales{.pre = 0.7, .post = 1.9}, Scales{.pre = 0.5}}) {
      for (const std::size_t ranks : Counts{1, 2, 3, 4, 8}) {
        for (const std::size_t count : Counts{0, 1, 7, 63, 64, 65, 1000, 4099}) {
          std::vector<Bytes> inputs;
          for (std::size_t rank = 0; rank < ranks; ++rank) {
            inputs.push_back(oracle::random_elements(random, dtype, count));
          }
          expect_oracle(dtype, op, scales, inputs);
        }
      }
    }
  });
}

TEST_P(Reduce, EqualsTheNaiveLoopsForArbitraryBits) {
  std::mt19937_64 random(kSeed);
  for_every_type_and_op([&](DType dtype, ReduceOp op) {
    for (const Scales scales : {Scales{}, Scales{.pre = 3.7, .post = -0.3}}) {
      for (const std::size_t ranks : Counts{2, 3}) {
        std::vector<Bytes> inputs;
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          inputs.push_back(oracle::random_bits(random, 5003 * dtype_bytes(dtype)));
        }
        expect_oracle(dtype, op, scales, inputs);
      }
    }
  });
}

TEST_P(Reduce, GivesTheBitsOfThePortableVariant) {
  std::mt19937_64 random(kSeed);
  const Variant& portable = variants().back();
  for_every_type_and_op([&](DType dtype, ReduceOp op) {
    for (const Scales scales : {Scales{}, Scales{.pre = 0.3, .post = 1.0 / 7}}) {
      std::vector<Bytes> inputs;
      for (int rank = 0; rank < 5; ++rank) {
        inputs.push_back(oracle::random_elements(random, dtype, 10'007));
      }
      ASSERT_EQ(run(dtype, op, scales, inputs), run_with(portable, dtype, op, scales, inputs))
          << case_name(dtype, op, scales, inputs.size(), 10'007);
    }
  });
}

TEST_P(Reduce, WritesEveryRanksMemoryInPlace) {
  std::mt19937_64 random(kSeed);
  for_every_type_and_op([&](DType dtype, ReduceOp op) {
    std::vector<Bytes> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.push_back(oracle::random_elements(random, dtype, 1003));
    }
    const Bytes want = oracle::reduce(dtype, op, {}, ranks);
    const std::vector<const std::byte*> from = {ranks[0].data(), ranks[1].data(), ranks[2].data()};
    // Another order than the inputs': the last input is written before the first.
    const std::vector<std::byte*> to = {ranks[2].data(), ranks[0].data(), ranks[1].data()};
    run_pointers(*GetParam(), dtype, op, {}, from, to, 1003);
    for (const Bytes& rank : ranks) {
      ASSERT_TRUE(oracle::same(dtype, rank, want)) << case_name(dtype, op, {}, 3, 1003);
    }
  });
}

TEST_P(Reduce, AcceptsMemoryAlignedToOneElementOnly) {
  std::mt19937_64 random(kSeed);
  for_every_type_and_op([&](DType dtype, ReduceOp op) {
    constexpr std::size_t kCount = 517;
    const std::size_t shift = dtype_bytes(dtype);
    const std::vector<Bytes> inputs = {oracle::random_elements(random, dtype, kCount + 1),
                                       oracle::random_elements(random, dtype, kCount + 1)};
    const std::vector<const std::byte*> from = {inputs[0].data() + shift, inputs[1].data() + shift};
    Bytes result(inputs[0].size());
    std::byte* const to[] = {result.data() + shift};
    run_pointers(*GetParam(), dtype, op, {}, from, to, kCount);
    Bytes want = oracle::reduce(dtype, op, {}, inputs);
    std::fill_n(want.begin(), shift, std::byte{0});
    ASSERT_TRUE(oracle::same(dtype, result, want)) << case_name(dtype, op, {}, 2, kCount);
  });
}

TEST_P(Reduce, TouchesNothingBehindTheLastElement) {
  for_every_type_and_op([&](DType dtype, ReduceOp op) {
    for (const std::size_t count : Counts{0, 1, 5, 31, 67}) {
      const std::size_t bytes = count * dtype_bytes(dtype);
      const Bytes input(bytes);
      Bytes output(bytes + 128, std::byte{0xA5});
      const std::byte* const from[] = {input.data(), input.data()};
      std::byte* const to[] = {output.data()};
      run_pointers(*GetParam(), dtype, op, {}, from, to, count);
      for (std::size_t i = bytes; i < output.size(); ++i) {
        ASSERT_EQ(output[i], std::byte{0xA5}) << case_name(dtype, op, {}, 2, count);
      }
    }
  });
}

TEST_P(Reduce, CombinesAsManyRanksAsAHostMayHave) {
  const std::vector<std::int64_t> ones(static_cast<std::size_t>(kLocalRanksMax), 1);
  EXPECT_EQ(run_one(DType::kInt64, ReduceOp::kSum, ones), kLocalRanksMax);
}

TEST_P(Reduce, AddsInRankOrder) {
  EXPECT_EQ(run_one<float>(DType::kFloat32, ReduceOp::kSum, {1e8f, 1.0f, -1e8f}), 0.0f);
  EXPECT_EQ(run_one<float>(DType::kFloat32, ReduceOp::kSum, {1e8f, -1e8f, 1.0f}), 1.0f);
}

TEST_P(Reduce, DoesNotFuseTheScaleIntoTheAddition) {
  // The square needs 25 bits: fused, the last of them would survive the subtraction.
  const float x = 1.0f + 0x1p-12f;
  EXPECT_EQ(run_one<float>(DType::kFloat32, ReduceOp::kSum, {-x, x}, {.pre = x}), 0.0f);
}

TEST_P(Reduce, LetsNanWinMinimumAndMaximumOnEitherSide) {
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    EXPECT_TRUE(std::isnan(run_one<float>(DType::kFloat32, op, {kNan, 1.0f, 2.0f})));
    EXPECT_TRUE(std::isnan(run_one<float>(DType::kFloat32, op, {1.0f, 2.0f, kNan})));
    EXPECT_TRUE(std::isnan(run_one<double>(DType::kFloat64, op, {1.0, std::nan(""), 2.0})));
    EXPECT_EQ(run_one<std::uint16_t>(DType::kFloat16, op, {0x3C00, 0x7E00, 0x4000}), 0x7E00);
    EXPECT_EQ(run_one<std::uint16_t>(DType::kBFloat16, op, {0x7FC0, 0x3F80}), 0x7FC0);
  }
}

TEST_P(Reduce, AddsOppositeInfinitiesToNan) {
  EXPECT_TRUE(std::isnan(run_one<float>(DType::kFloat32, ReduceOp::kSum, {kInfinity, -kInfinity})));
}

TEST_P(Reduce, KeepsSubnormals) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(run_one<float>(DType::kFloat32, ReduceOp::kSum, {tiny, tiny}), 2 * tiny);
  EXPECT_EQ(run_one<std::uint16_t>(DType::kFloat16, ReduceOp::kSum, {0x0001, 0x0002}), 0x0003);
  EXPECT_EQ(run_one<std::uint16_t>(DType::kBFloat16, ReduceOp::kSum, {0x0001, 0x0002}), 0x0003);
}

TEST_P(Reduce, KeepsTheSignOfZero) {
  const float sum = run_one<float>(DType::kFloat32, ReduceOp::kSum, {-0.0f, -0.0f});
  EXPECT_TRUE(std::signbit(sum));
  EXPECT_EQ(run_one<std::uint16_t>(DType::kFloat16, ReduceOp::kSum, {0x8000, 0x8000}), 0x8000);
}

TEST_P(Reduce, TakesTheEarlierOfEqualZeros) {
  const float minimum = run_one<float>(DType::kFloat32, ReduceOp::kMin, {0.0f, -0.0f});
  EXPECT_FALSE(std::signbit(minimum));
  const float maximum = run_one<float>(DType::kFloat32, ReduceOp::kMax, {-0.0f, 0.0f});
  EXPECT_TRUE(std::signbit(maximum));
}

TEST_P(Reduce, OverflowsFloat16ToInfinity) {
  EXPECT_EQ(run_one<std::uint16_t>(DType::kFloat16, ReduceOp::kSum, {0x7BFF, 0x7BFF}), 0x7C00);
}

TEST_P(Reduce, HoldsSumsOfFloat16ThatOnlyInBetweenOverflow) {
  EXPECT_EQ(run_one<std::uint16_t>(DType::kFloat16, ReduceOp::kSum, {0x7BFF, 0x7BFF, 0xFBFF}),
            0x7BFF);
}

TEST_P(Reduce, RoundsTiesOfBFloat16ToEven) {
  // 1 + 2^-8 lies halfway between 1 (even) and 1 + 2^-7; 1 + 3 * 2^-8 between odd and even.
  EXPECT_EQ(run_one<std::uint16_t>(DType::kBFloat16, ReduceOp::kSum, {0x3F80, 0x3B80}), 0x3F80);
  EXPECT_EQ(run_one<std::uint16_t>(DType::kBFloat16, ReduceOp::kSum, {0x3F81, 0x3B80}), 0x3F82);
}

TEST_P(Reduce, WrapsIntegers) {
  EXPECT_EQ(run_one<std::int8_t>(DType::kInt8, ReduceOp::kSum, {127, 1}), -128);
  EXPECT_EQ(run_one<std::uint8_t>(DType::kUInt8, ReduceOp::kSum, {200, 100}), 44);
  EXPECT_EQ(run_one<std::int32_t>(DType::kInt32, ReduceOp::kSum, {INT32_MAX, 1}), INT32_MIN);
  EXPECT_EQ(run_one<std::int32_t>(DType::kInt32, ReduceOp::kProduct, {1 << 30, 4}), 0);
  EXPECT_EQ(run_one<std::int64_t>(DType::kInt64, ReduceOp::kSum, {INT64_MAX, 1}), INT64_MIN);
}

TEST_P(Reduce, ComparesSignedIntegersAsSigned) {
  EXPECT_EQ(run_one<std::int8_t>(DType::kInt8, ReduceOp::kMin, {-1, 1}), -1);
  EXPECT_EQ(run_one<std::uint8_t>(DType::kUInt8, ReduceOp::kMin, {255, 1}), 1);
}

TEST_P(Reduce, TruncatesAveragesOfIntegersTowardZero) {
  const Scales average = {.post = 1.0 / 2};
  EXPECT_EQ(run_one<std::int64_t>(DType::kInt64, ReduceOp::kAverage, {3, 4}, average), 3);
  EXPECT_EQ(run_one<std::int64_t>(DType::kInt64, ReduceOp::kAverage, {-3, -4}, average), -3);
}

TEST_P(Reduce, AveragesEqualIntegersToThemselvesForEveryNumberOfRanks) {
  for (std::size_t ranks = 1; ranks <= static_cast<std::size_t>(kLocalRanksMax); ++ranks) {
    const Scales average = {.post = 1.0 / static_cast<double>(ranks)};
    const std::vector<std::int32_t> ones(ranks, 1);  // 49 * (1.0 / 49) is less than 1
    ASSERT_EQ(run_one(DType::kInt32, ReduceOp::kAverage, ones, average), 1) << ranks << " ranks";
    const std::vector<std::int64_t> large(ranks, 10'000'000'000'000'001);
    ASSERT_EQ(run_one(DType::kInt64, ReduceOp::kAverage, large, average), large[0])
        << ranks << " ranks";
  }
}

TEST_P(Reduce, LeavesLargeInt64ExactWhereTheScaleIsOne) {
  constexpr std::int64_t kBeyondDouble = (std::int64_t{1} << 53) + 1;
  EXPECT_EQ(
      run_one<std::int64_t>(DType::kInt64, ReduceOp::kMax, {kBeyondDouble, 0}, {.post = -1.0}),
      -(kBeyondDouble - 1));  // through double
  EXPECT_EQ(run_one<std::int64_t>(DType::kInt64, ReduceOp::kMax, {kBeyondDouble, 0}),
            kBeyondDouble);
}

TEST_P(Reduce, ClampsScaledIntegersToTheirType) {
  EXPECT_EQ(run_one<std::int8_t>(DType::kInt8, ReduceOp::kSum, {100}, {.pre = 1e6}), 127);
  EXPECT_EQ(run_one<std::uint8_t>(DType::kUInt8, ReduceOp::kSum, {100}, {.pre = -1.0}), 0);
  EXPECT_EQ(run_one<std::int64_t>(DType::kInt64, ReduceOp::kSum, {-5}, {.pre = 1e300}), INT64_MIN);
}

// --- Through the front, with the instruction set it chose. ---

TEST(ReduceFront, ChoosesTheFirstAvailableVariant) {
  EXPECT_STREQ(instruction_set(), oracle::available_variants().front()->name);
}

TEST(ReduceFront, AveragesInPlace) {
  std::vector<float> a = {1, 2, 3};
  std::vector<float> b = {3, 4, 6};
  const std::vector<const std::byte*> from = {reinterpret_cast<std::byte*>(a.data()),
                                              reinterpret_cast<std::byte*>(b.data())};
  const std::vector<std::byte*> to = {reinterpret_cast<std::byte*>(a.data()),
                                      reinterpret_cast<std::byte*>(b.data())};
  reduce({.dtype = DType::kFloat32, .op = ReduceOp::kAverage, .postscale = 0.5}, from, to, 3);
  EXPECT_EQ(a, (std::vector<float>{2, 3, 4.5}));
  EXPECT_EQ(a, b);
}

TEST(ReduceFront, CopiesALonelyRankBitForBit) {
  const std::vector<std::uint16_t> signaling_nan = {0x7C01, 0x3C00};
  std::vector<std::uint16_t> result(2);
  const std::byte* const from[] = {reinterpret_cast<const std::byte*>(signaling_nan.data())};
  std::byte* const to[] = {reinterpret_cast<std::byte*>(result.data())};
  reduce({.dtype = DType::kFloat16, .op = ReduceOp::kSum}, from, to, 2);
  EXPECT_EQ(result, signaling_nan);
}

TEST(ReduceFront, ScalesInPlace) {
  std::vector<std::int32_t> values = {7, -7, 8};
  scale(DType::kInt32, reinterpret_cast<std::byte*>(values.data()), 3, 0.25);
  EXPECT_EQ(values, (std::vector<std::int32_t>{1, -1, 2}));
}

TEST(ReduceFrontDeathTest, RefusesToReduceNothing) {
  std::byte byte{};
  std::byte* const to[] = {&byte};
  EXPECT_DEATH(reduce({.dtype = DType::kUInt8, .op = ReduceOp::kSum}, {}, to, 1),
               "broken invariant");
}

}  // namespace
}  // namespace ciranda::kernels
