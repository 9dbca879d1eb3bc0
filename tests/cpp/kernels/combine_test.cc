#include "core/kernels/combine.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "core/kernels/reduce.h"

namespace ciranda::kernels {
namespace {

constexpr std::size_t kCount = 1300;  // not a whole number of blocks

double value_of(std::size_t row, std::size_t i) {
  return std::ldexp(static_cast<double>((i * 7 + row * 11) % 31) - 15, -3);  // exact in all dtypes
}

class Combine : public ::testing::TestWithParam<DType> {
 protected:
  Combine() : memory_(3, std::vector<std::byte>(kCount * dtype_bytes(GetParam()))) {
    for (std::size_t row = 0; row < memory_.size(); ++row) {
      std::vector<double> values(kCount);
      for (std::size_t i = 0; i < kCount; ++i) values[i] = value_of(row, i);
      cast(DType::kFloat64, reinterpret_cast<const std::byte*>(values.data()), GetParam(),
           memory_[row].data(), kCount);
      rows_.push_back(memory_[row].data());
    }
  }

  std::vector<std::vector<std::byte>> memory_;
  std::vector<const std::byte*> rows_;
};

TEST_P(Combine, AddsAllProducts) {
  std::array<double, 6> products = {1, 0, 0, 0, 0, 0};
  add_products(GetParam(), rows_, kCount, products);
  std::size_t at = 0;
  for (std::size_t a = 0; a < 3; ++a) {
    for (std::size_t b = 0; b <= a; ++b, ++at) {
      double wanted = at == 0 ? 1 : 0;
      for (std::size_t i = 0; i < kCount; ++i) wanted += value_of(a, i) * value_of(b, i);
      EXPECT_DOUBLE_EQ(products[at], wanted);
    }
  }
}

TEST_P(Combine, SumsRowsIntoOneOfThem) {
  const std::array<double, 3> factors = {0.5, 2, -1};
  weighted_sum(GetParam(), rows_, factors, memory_[1].data(), kCount);
  std::vector<double> sums(kCount);
  cast(GetParam(), memory_[1].data(), DType::kFloat64, reinterpret_cast<std::byte*>(sums.data()),
       kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(sums[i], 0.5 * value_of(0, i) + 2 * value_of(1, i) - value_of(2, i)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Floats, Combine,
                         ::testing::Values(DType::kFloat16, DType::kBFloat16, DType::kFloat32,
                                           DType::kFloat64));

}  // namespace
}  // namespace ciranda::kernels
