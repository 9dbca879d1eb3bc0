// What could break: a rounding off by one unit, or a NaN that a cast turns into infinity, seen only
// as a model that trains slightly worse with compression.
#include <gtest/gtest.h>

#include "core/kernels/reduce.h"
#include "kernels/oracle.h"

namespace ciranda::kernels {
namespace {

using oracle::Bytes;
using oracle::bytes_of;
using oracle::FloatLayout;
using oracle::values_of;

constexpr std::uint64_t kSeed = 0xca57;

class Cast : public testing::TestWithParam<const Variant*> {
 protected:
  static Bytes run(DType from_dtype, const Bytes& from, DType to_dtype, double factor = 1.0) {
    const std::size_t count = from.size() / dtype_bytes(from_dtype);
    Bytes to(count * dtype_bytes(to_dtype));
    GetParam()->loops->cast({.from_dtype = from_dtype,
                             .from = from.data(),
                             .to_dtype = to_dtype,
                             .to = to.data(),
                             .count = count,
                             .factor = factor});
    return to;
  }

  template <class From, class To>
  static To run_one(DType from_dtype, From value, DType to_dtype, double factor = 1.0) {
    const Bytes from = bytes_of(std::vector<From>{value});
    return values_of<To>(run(from_dtype, from, to_dtype, factor))[0];
  }

  static std::vector<std::uint16_t> all_halves() {
    std::vector<std::uint16_t> halves(1 << 16);
    for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
    return halves;
  }

  static void expect_widened(FloatLayout layout, DType half) {
    std::vector<float> want;
    for (const std::uint16_t bits : all_halves()) {
      want.push_back(static_cast<float>(oracle::decode(layout, bits)));
    }
    const Bytes got = run(half, bytes_of(all_halves()), DType::kFloat32);
    EXPECT_TRUE(oracle::same(DType::kFloat32, got, bytes_of(want)));
  }

  template <class Wide>
  static void expect_rounded(FloatLayout layout, DType half, DType wide,
                             const std::vector<Wide>& values) {
    std::vector<std::uint16_t> want;
    for (const Wide value : values) want.push_back(oracle::encode(layout, double{value}));
    EXPECT_TRUE(oracle::same(half, run(wide, bytes_of(values), half), bytes_of(want)));
  }

  // Around every half and every midpoint between neighbours: the value itself and the next Wide on
  // either side.
  template <class Wide>
  static std::vector<Wide> values_at_rounding_borders(FloatLayout layout) {
    std::vector<Wide> values;
    for (int bits = 0; bits < layout.infinity(); ++bits) {
      const double low = oracle::decode(layout, static_cast<std::uint16_t>(bits));
      // Past the largest half, what would be the next one.
      const double step = low - oracle::decode(layout, static_cast<std::uint16_t>(bits - 1));
      const double high = bits + 1 == layout.infinity()
                              ? low + step
                              : oracle::decode(layout, static_cast<std::uint16_t>(bits + 1));
      for (const double border : {low, low + (high - low) / 2}) {
        const auto value = static_cast<Wide>(border);
        const Wide infinity = std::numeric_limits<Wide>::infinity();
        for (const Wide near :
             {value, std::nextafter(value, infinity), std::nextafter(value, Wide{0})}) {
          values.push_back(near);
          values.push_back(-near);
        }
      }
    }
    return values;
  }
};
INSTANTIATE_TEST_SUITE_P(Variants, Cast, testing::ValuesIn(oracle::available_variants()),
                         oracle::variant_name);

TEST_P(Cast, WidensEveryFloat16Exactly) {
  expect_widened(oracle::kFloat16Layout, DType::kFloat16);
}

TEST_P(Cast, WidensEveryBFloat16Exactly) {
  expect_widened(oracle::kBFloat16Layout, DType::kBFloat16);
}

TEST_P(Cast, RoundsFloat32ToTheNearestFloat16AtEveryBorder) {
  expect_rounded(oracle::kFloat16Layout, DType::kFloat16, DType::kFloat32,
                 values_at_rounding_borders<float>(oracle::kFloat16Layout));
}

TEST_P(Cast, RoundsFloat32ToTheNearestBFloat16AtEveryBorder) {
  expect_rounded(oracle::kBFloat16Layout, DType::kBFloat16, DType::kFloat32,
                 values_at_rounding_borders<float>(oracle::kBFloat16Layout));
}

TEST_P(Cast, RoundsFloat64OnlyOnceToFloat16) {
  expect_rounded(oracle::kFloat16Layout, DType::kFloat16, DType::kFloat64,
                 values_at_rounding_borders<double>(oracle::kFloat16Layout));
}

TEST_P(Cast, RoundsFloat64OnlyOnceToBFloat16) {
  expect_rounded(oracle::kBFloat16Layout, DType::kBFloat16, DType::kFloat64,
                 values_at_rounding_borders<double>(oracle::kBFloat16Layout));
}

TEST_P(Cast, RoundsArbitraryFloat32LikeTheOracle) {
  std::mt19937_64 random(kSeed);
  const auto values = values_of<float>(oracle::random_bits(random, 400'004));
  expect_rounded(oracle::kFloat16Layout, DType::kFloat16, DType::kFloat32, values);
  expect_rounded(oracle::kBFloat16Layout, DType::kBFloat16, DType::kFloat32, values);
}

TEST_P(Cast, RoundsFloat64ToTheNearestFloat32) {
  std::mt19937_64 random(kSeed);
  const Bytes doubles = oracle::random_elements(random, DType::kFloat64, 10'007);
  std::vector<float> want;
  for (const double value : values_of<double>(doubles)) want.push_back(static_cast<float>(value));
  EXPECT_EQ(values_of<float>(run(DType::kFloat64, doubles, DType::kFloat32)), want);
}

TEST_P(Cast, BringsEveryHalfBackUnchangedAndKeepsNanANan) {
  for (const DType half : {DType::kFloat16, DType::kBFloat16}) {
    for (const DType wide : {DType::kFloat32, DType::kFloat64}) {
      const Bytes halves = bytes_of(all_halves());
      const Bytes back = run(wide, run(half, halves, wide), half);
      EXPECT_TRUE(oracle::same(half, back, halves)) << dtype_name(half) << dtype_name(wide);
    }
  }
}

TEST_P(Cast, GivesTheBitsOfThePortableVariantNansIncluded) {
  std::mt19937_64 random(kSeed);
  for (int from = static_cast<int>(DType::kFloat16); from < kDTypeCount; ++from) {
    for (int to = static_cast<int>(DType::kFloat16); to < kDTypeCount; ++to) {
      const auto from_dtype = static_cast<DType>(from);
      const auto to_dtype = static_cast<DType>(to);
      if (!is_floating(from_dtype) || !is_floating(to_dtype)) continue;
      constexpr std::size_t kCount = 20'011;
      const Bytes input = oracle::random_bits(random, kCount * dtype_bytes(from_dtype));
      Bytes want(kCount * dtype_bytes(to_dtype));
      variants().back().loops->cast({.from_dtype = from_dtype,
                                     .from = input.data(),
                                     .to_dtype = to_dtype,
                                     .to = want.data(),
                                     .count = kCount,
                                     .factor = 1.0});
      EXPECT_EQ(run(from_dtype, input, to_dtype), want)
          << dtype_name(from_dtype) << " to " << dtype_name(to_dtype) << ", seed " << kSeed;
    }
  }
}

TEST_P(Cast, MultipliesBeforeItRounds) {
  // 65536 * 0.5 fits a float16, 65536 does not.
  EXPECT_EQ((run_one<float, std::uint16_t>(DType::kFloat32, 65536.0f, DType::kFloat16, 0.5)),
            0x7800);
  EXPECT_EQ((run_one<std::uint16_t, float>(DType::kFloat16, 0x7BFF, DType::kFloat32, 2.0)),
            131008.0f);
  EXPECT_EQ((run_one<double, float>(DType::kFloat64, 1e300, DType::kFloat32, 1e-300)), 1.0f);
  EXPECT_EQ((run_one<float, double>(DType::kFloat32, 1e30f, DType::kFloat64, 1e30)),
            double{1e30f} * 1e30);
}

TEST_P(Cast, OverflowsFloat64ToInfinity) {
  EXPECT_TRUE(std::isinf(run_one<double, float>(DType::kFloat64, 1e300, DType::kFloat32)));
  EXPECT_EQ((run_one<double, std::uint16_t>(DType::kFloat64, -1e300, DType::kFloat16)), 0xFC00);
  EXPECT_EQ((run_one<double, std::uint16_t>(DType::kFloat64, 1e300, DType::kBFloat16)), 0x7F80);
}

TEST_P(Cast, HandlesEveryCountUpToThreeVectors) {
  for (std::size_t count = 0; count <= 48; ++count) {
    std::vector<float> floats;
    for (std::size_t i = 0; i < count; ++i) floats.push_back(static_cast<float>(i) * 0.25f);
    for (const DType to : {DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
      const Bytes there = run(DType::kFloat32, bytes_of(floats), to);
      ASSERT_EQ(values_of<float>(run(to, there, DType::kFloat32)), floats)
          << count << " through " << dtype_name(to);
    }
  }
}

TEST(CastFront, CastsWithTheChosenVariant) {
  const std::vector<float> from = {1.0f, 2.0f};
  std::vector<std::uint16_t> to(2);
  cast(DType::kFloat32, reinterpret_cast<const std::byte*>(from.data()), DType::kBFloat16,
       reinterpret_cast<std::byte*>(to.data()), 2);
  EXPECT_EQ(to, (std::vector<std::uint16_t>{0x3F80, 0x4000}));
}

TEST(CastFront, CopiesBetweenEqualTypes) {
  const std::vector<std::uint16_t> from = {0x7C01, 0x3C00};  // a signaling NaN stays one
  std::vector<std::uint16_t> to(2);
  cast(DType::kFloat16, reinterpret_cast<const std::byte*>(from.data()), DType::kFloat16,
       reinterpret_cast<std::byte*>(to.data()), 2);
  EXPECT_EQ(to, from);
}

TEST(CastFrontDeathTest, RefusesIntegers) {
  std::byte bytes[8] = {};
  EXPECT_DEATH(cast(DType::kInt32, bytes, DType::kFloat32, bytes + 4, 1), "broken invariant");
}

}  // namespace
}  // namespace ciranda::kernels
