#pragma once

#include <bit>
#include <cstddef>
#include <vector>

namespace ciranda::testing {

using Gradient = std::vector<double>;

inline double dot(const Gradient& a, const Gradient& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// The definition, on whole gradients.
inline Gradient adasum(const Gradient& a, const Gradient& b) {
  const double ab = dot(a, b), aa = dot(a, a), bb = dot(b, b);
  const double of_a = aa == 0 ? 1 : 1 - ab / (2 * aa);
  const double of_b = bb == 0 ? 1 : 1 - ab / (2 * bb);
  Gradient sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) sum[i] = of_a * a[i] + of_b * b[i];
  return sum;
}

// The tree of plan/adasum.h.
inline Gradient adasum(const std::vector<Gradient>& gradients) {
  if (gradients.size() == 1) return gradients.front();
  const auto middle =
      gradients.begin() + static_cast<std::ptrdiff_t>(std::bit_floor(gradients.size() - 1));
  return adasum(adasum({gradients.begin(), middle}), adasum({middle, gradients.end()}));
}

}  // namespace ciranda::testing
