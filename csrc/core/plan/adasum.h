#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace ciranda {

// Adasum of two gradients (S. Maleki, M. Musuvathi, T. Mytkowicz and others, "Scaling Distributed
// Training with Adaptive Summation", MLSys 2021):
//
//   adasum(a, b) = (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b
//
// The sum of orthogonal gradients, the average of equal ones. Those of more ranks are combined by a
// tree: the first 2^k ranks and the others, with 2^k the largest power of two below their number,
// and so on; of 4 ranks adasum(adasum(0, 1), adasum(2, 3)).
//
// The result is a weighted sum of the ranks' gradients, and the weights follow from their dot
// products alone. So each rank needs to see a part of all gradients only.

// Dot products of each rank with itself and those before it: (0, 0), (1, 0), (1, 1), (2, 0), …
constexpr std::size_t adasum_products(std::size_t ranks) {
  return ranks * (ranks + 1) / 2;
}

// By rank the factor of its gradient. A gradient of zeros changes nothing.
std::vector<double> adasum_factors(std::span<const double> products, std::size_t ranks);

}  // namespace ciranda
