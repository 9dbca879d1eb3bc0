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
// Adasum of orthogonal gradients is their sum, of equal gradients their average. The gradients of
// more ranks are combined by a tree. It splits the ranks into the first 2^k and the rest, with 2^k
// the largest power of two below their number, and so on. For 4 ranks this is adasum(adasum(0, 1),
// adasum(2, 3)).
//
// The result is a weighted sum of the ranks' gradients, and the weights follow from their dot
// products alone. So each rank needs only a part of all gradients.

// Number of dot products of each rank with itself and the ranks before it: (0, 0), (1, 0), (1, 1),
// (2, 0), …
constexpr std::size_t adasum_products(std::size_t ranks) {
  return ranks * (ranks + 1) / 2;
}

// Returns the factor of each rank's gradient, by rank. `products` has the order above. A gradient
// of zeros changes nothing.
std::vector<double> adasum_factors(std::span<const double> products, std::size_t ranks);

}  // namespace ciranda
