// What could break: ranks that add what they have instead of what their peers know of it, and so
// end with other bits; a NaN or an infinity that gets lost on the way.
#include <gtest/gtest.h>

#include "core/kernels/reduce.h"
#include "kernels/oracle.h"

namespace ciranda::kernels {
namespace {

using oracle::Bytes;
using oracle::bytes_of;
using oracle::FloatLayout;
using oracle::values_of;

constexpr std::uint64_t kSeed = 0xadd;

class AddArrived : public testing::TestWithParam<const Variant*> {
 protected:
  static float rounded(FloatLayout layout, float value) {
    const std::uint16_t half = oracle::encode(layout, static_cast<double>(value));
    return static_cast<float>(oracle::decode(layout, half));
  }

  // Checks both outputs; one of them is the memory of `own`.
  static void expect_like_oracle(FloatLayout layout, AddArrivedArgs args, const Bytes& own,
                                 const Bytes& arrived) {
    const auto owns = values_of<float>(own);
    const auto halves = values_of<std::uint16_t>(arrived);
    std::vector<float> want;
    for (std::size_t i = 0; i < owns.size(); ++i) {
      const float mine = args.own_rounded ? rounded(layout, owns[i]) : owns[i];
      const float sum = (mine + static_cast<float>(oracle::decode(layout, halves[i]))) *
                        static_cast<float>(args.postscale);
      want.push_back(args.result_rounded ? rounded(layout, sum) : sum);
    }
    Bytes in_place = own;
    Bytes other(own.size());
    std::byte* const outputs[] = {in_place.data(), other.data()};
    GetParam()->loops->add_arrived({.wire_dtype = args.wire_dtype,
                                    .own_rounded = args.own_rounded,
                                    .result_rounded = args.result_rounded,
                                    .postscale = args.postscale,
                                    .own = in_place.data(),
                                    .arrived = arrived.data(),
                                    .outputs = outputs,
                                    .output_count = 2,
                                    .count = owns.size()});
    EXPECT_TRUE(oracle::same(DType::kFloat32, in_place, bytes_of(want))) << owns.size();
    EXPECT_TRUE(oracle::same(DType::kFloat32, other, bytes_of(want))) << owns.size();
  }

  static void expect_like_oracle(const Bytes& own, const Bytes& arrived) {
    for (int bits = 0; bits < 8; ++bits) {
      const AddArrivedArgs args = {.wire_dtype = DType::kFloat16,
                                   .own_rounded = (bits & 1) != 0,
                                   .result_rounded = (bits & 2) != 0,
                                   .postscale = (bits & 4) != 0 ? 1.0 / 3 : 1.0};
      expect_like_oracle(oracle::kFloat16Layout, args, own, arrived);
      AddArrivedArgs other = args;
      other.wire_dtype = DType::kBFloat16;
      expect_like_oracle(oracle::kBFloat16Layout, other, own, arrived);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Variants, AddArrived, testing::ValuesIn(oracle::available_variants()),
                         oracle::variant_name);

TEST_P(AddArrived, AddsAndRoundsLikeTheOracleWhateverTheBits) {
  std::mt19937_64 random(kSeed);
  constexpr std::size_t kCount = 5'003;
  expect_like_oracle(oracle::random_bits(random, 4 * kCount),
                     oracle::random_bits(random, 2 * kCount));
  expect_like_oracle(oracle::random_elements(random, DType::kFloat32, kCount),
                     oracle::random_elements(random, DType::kFloat16, kCount));
}

TEST_P(AddArrived, HandlesEveryCountUpToThreeVectors) {
  std::mt19937_64 random(kSeed);
  for (std::size_t count = 0; count <= 48; ++count) {
    expect_like_oracle(oracle::random_elements(random, DType::kFloat32, count),
                       oracle::random_elements(random, DType::kBFloat16, count));
  }
}

TEST_P(AddArrived, KeepsNansAndInfinities) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> own = {infinity, -infinity, nan, 1.0f, 1.0f, infinity, 3e38f};
  // 0, 0, 0, infinity, NaN, -infinity, 0 as either half type has them.
  expect_like_oracle(bytes_of(own),
                     bytes_of(std::vector<std::uint16_t>{0, 0, 0, 0x7F80, 0x7FC0, 0xFF80, 0}));
  expect_like_oracle(bytes_of(own),
                     bytes_of(std::vector<std::uint16_t>{0, 0, 0, 0x7C00, 0x7E00, 0xFC00, 0}));
}

TEST(AddArrivedFront, WritesEveryOutput) {
  const float own = 1.0f;
  const std::uint16_t arrived = 0x4000;  // 2 as a bfloat16
  float results[2] = {};
  std::byte* const outputs[] = {reinterpret_cast<std::byte*>(&results[0]),
                                reinterpret_cast<std::byte*>(&results[1])};
  add_arrived({.wire_dtype = DType::kBFloat16}, reinterpret_cast<const std::byte*>(&own),
              reinterpret_cast<const std::byte*>(&arrived), outputs, 1);
  EXPECT_EQ(results[0], 3.0f);
  EXPECT_EQ(results[1], 3.0f);
}

}  // namespace
}  // namespace ciranda::kernels
