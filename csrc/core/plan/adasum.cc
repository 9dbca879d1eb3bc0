#include "core/plan/adasum.h"

#include <bit>
#include <cmath>

#include "core/base/assert.h"

namespace ciranda {
namespace {

// A combination that cancels to this fraction of its terms consists of their rounding errors and
// counts as zero.
constexpr double kNothingLeft = 1e-14;

class Tree {
 public:
  Tree(std::span<const double> products, std::size_t ranks)
      : products_(products), factors_(ranks, 1.0) {}

  // Turns the factors of ranks [begin, end) into those of their Adasum.
  void combine(std::size_t begin, std::size_t end) {
    if (end - begin < 2) return;
    const std::size_t middle = begin + std::bit_floor(end - begin - 1);
    combine(begin, middle);
    combine(middle, end);
    const double dot = product_of(begin, middle, middle, end);
    const double first = weight(dot, product_of(begin, middle, begin, middle));
    const double second = weight(dot, product_of(middle, end, middle, end));
    for (std::size_t rank = begin; rank < end; ++rank) {
      factors_[rank] *= rank < middle ? first : second;
    }
  }

  std::vector<double> take() { return std::move(factors_); }

 private:
  static double weight(double dot, double square) {
    return square == 0.0 ? 1.0 : 1.0 - dot / (2.0 * square);
  }

  // Returns the dot product of the combinations of ranks [a, a_end) and [b, b_end).
  double product_of(std::size_t a, std::size_t a_end, std::size_t b, std::size_t b_end) const {
    double sum = 0.0;
    double magnitude = 0.0;
    for (std::size_t i = a; i < a_end; ++i) {
      for (std::size_t j = b; j < b_end; ++j) {
        const double term = factors_[i] * factors_[j] * product(i, j);
        sum += term;
        magnitude += std::abs(term);
      }
    }
    return std::abs(sum) <= kNothingLeft * magnitude ? 0.0 : sum;
  }

  double product(std::size_t i, std::size_t j) const {
    if (j > i) return product(j, i);
    return products_[adasum_products(i) + j];
  }

  const std::span<const double> products_;
  std::vector<double> factors_;
};

}  // namespace

std::vector<double> adasum_factors(std::span<const double> products, std::size_t ranks) {
  CIRANDA_ASSERT(products.size() == adasum_products(ranks));
  Tree tree(products, ranks);
  tree.combine(0, ranks);
  return tree.take();
}

}  // namespace ciranda
