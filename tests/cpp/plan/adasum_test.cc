#include "core/plan/adasum.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "adasum_model.h"

namespace ciranda::testing {
namespace {

Gradient by_factors(const std::vector<Gradient>& gradients) {
  std::vector<double> products;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    for (std::size_t j = 0; j <= i; ++j) products.push_back(dot(gradients[i], gradients[j]));
  }
  const std::vector<double> factors = adasum_factors(products, gradients.size());
  Gradient sum(gradients.front().size());
  for (std::size_t r = 0; r < gradients.size(); ++r) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += factors[r] * gradients[r][i];
  }
  return sum;
}

void expect_near(const Gradient& found, const Gradient& wanted, double tolerance = 1e-12) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(found[i], wanted[i], tolerance);
}

TEST(Adasum, OfOneRankIsItsGradient) {
  expect_near(by_factors({{1, -2, 3}}), {1, -2, 3});
}

TEST(Adasum, AddsOrthogonalGradientsAndAveragesEqualOnes) {
  expect_near(by_factors({{1, 0}, {0, 2}}), {1, 2});
  expect_near(by_factors({{1, 3}, {1, 3}}), {1, 3});
  expect_near(by_factors({{1, 3}, {1, 3}, {1, 3}, {1, 3}, {1, 3}}), {1, 3});
}

TEST(Adasum, TakesZerosAsNothing) {
  expect_near(by_factors({{0, 0}, {0, 2}}), {0, 2});
  expect_near(by_factors({{0, 0}, {0, 0}}), {0, 0});
}

// Opposite gradients cancel; what their rounding leaves has no direction.
TEST(Adasum, OfWhatCancelsHasNoWeight) {
  expect_near(by_factors({{0.1, 0.7}, {-0.1, -0.7}, {3, 4}, {5, -6}}), adasum({3, 4}, {5, -6}));
}

TEST(Adasum, IsTheTreeOfItsDefinition) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  std::vector<Gradient> g(7, Gradient(50));
  for (Gradient& gradient : g) {
    for (double& value : gradient) value = normal(random);
  }
  const auto of = [&](std::size_t ranks) {
    return by_factors({g.begin(), g.begin() + static_cast<std::ptrdiff_t>(ranks)});
  };
  const Gradient four = adasum(adasum(g[0], g[1]), adasum(g[2], g[3]));
  expect_near(of(2), adasum(g[0], g[1]));
  expect_near(of(3), adasum(adasum(g[0], g[1]), g[2]));
  expect_near(of(4), four);
  expect_near(of(5), adasum(four, g[4]));
  expect_near(of(7), adasum(four, adasum(adasum(g[4], g[5]), g[6])));
}

}  // namespace
}  // namespace ciranda::testing
