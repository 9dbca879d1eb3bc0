// What could break: a sum or a product of other vectors, of elements that are none, or of memory
// that is not there.
#include "core/ps/decide/vectors.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace ciranda::ps {
namespace {

constexpr std::size_t kFloats = 3'000;  // more than a block
constexpr std::size_t kDoubles = 7;
constexpr std::uint64_t kDoublesAt = 12'032;
constexpr std::uint64_t kBytes = kDoublesAt + kDoubles * sizeof(double);

class VectorsTest : public ::testing::Test {
 protected:
  VectorsTest()
      : parameters_(kBytes),
        vectors_({{.elements = kFloats}, {kDoublesAt, kDoubles, DType::kFloat64}}, kBytes) {
    auto* floats = reinterpret_cast<float*>(parameters_.data);
    std::iota(floats, floats + kFloats, 1.0f);
    auto* doubles = reinterpret_cast<double*>(parameters_.data + kDoublesAt);
    std::iota(doubles, doubles + kDoubles, 0.5);
  }
  std::vector<double> work(const VectorWork& work) {
    auto dots = vectors_.work(work, parameters_.data);
    EXPECT_TRUE(dots.ok()) << dots.error().text;
    return std::move(dots).value();
  }
  float float_of(VectorId vector, std::size_t i) {
    return reinterpret_cast<const float*>(vectors_.data(vector))[i];
  }
  double double_of(VectorId vector, std::size_t i) {
    return reinterpret_cast<const double*>(vectors_.data(vector) + kDoublesAt)[i];
  }

  ZeroArray parameters_;
  Vectors vectors_;
};

TEST_F(VectorsTest, SumsAreMadeOneAfterTheOtherAndThenMultiplied) {
  const auto dots = work({.sums = {{.into = 2, .terms = {{0, 2.0}}},
                                   {.into = 2, .terms = {{2, 1.0}, {0, -1.5}, {1, 9.0}}},
                                   {.into = 3, .terms = {{2, 4.0}}},
                                   {.into = 2, .terms = {}}},
                          .dots = {{0, 3}, {2, 3}, {3, 3}}});
  EXPECT_EQ(vectors_.count(), 3u);
  for (const std::size_t i : {std::size_t{0}, std::size_t{1'023}, kFloats - 1}) {
    EXPECT_EQ(float_of(2, i), 0.0f);
    EXPECT_EQ(float_of(3, i), 2.0f * static_cast<float>(i + 1));
  }
  EXPECT_EQ(double_of(3, kDoubles - 1), 13.0);
  double squares = 0.0;
  for (std::size_t i = 0; i < kFloats; ++i) squares += static_cast<double>((i + 1) * (i + 1));
  for (std::size_t i = 0; i < kDoubles; ++i) {
    squares += (static_cast<double>(i) + 0.5) * (static_cast<double>(i) + 0.5);
  }
  EXPECT_DOUBLE_EQ(dots[0], 2.0 * squares);
  EXPECT_EQ(dots[1], 0.0);
  EXPECT_DOUBLE_EQ(dots[2], 4.0 * squares);
}

TEST_F(VectorsTest, TheParametersAreTheFirst) {
  work({.sums = {{.into = 0, .terms = {{0, 3.0}, {1, 1.0}}}}});
  EXPECT_EQ(reinterpret_cast<const float*>(parameters_.data)[9], 30.0f);
}

TEST_F(VectorsTest, WhatCannotBeIsRefused) {
  EXPECT_EQ(vectors_.reserve(kVectorsMax).error().text, "there is no vector 256, only 0 to 255");
  Vectors others({{.elements = 4, .dtype = DType::kBFloat16}}, 8);
  EXPECT_TRUE(others.reserve(0).ok());
  EXPECT_EQ(others.reserve(1).error().text,
            "vectors hold float32 and float64, but a parameter is bfloat16");
  Vectors large({{.elements = 4}}, std::uint64_t{1} << 62);
  EXPECT_EQ(large.reserve(1).error().code, ErrorCode::kSystem);
}

}  // namespace
}  // namespace ciranda::ps
