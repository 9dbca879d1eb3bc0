#pragma once

#include <cstddef>

#include "core/base/assert.h"
#include "core/kernels/formats.h"
#include "core/kernels/variants.h"
#include "core/kernels/vector_ops.h"
#include "core/kernels/vectors.h"

// The loops of sum_of_squares() for an instruction set `Isa` (formats.h). Anonymous for the same
// reason as vectors.h.
namespace ciranda::kernels {
namespace {

template <class Isa, class Format>
class SquareLoop {
 public:
  explicit SquareLoop(const Squaring& squaring) : s_(squaring) {}

  double run() const {
    Doubles sums[kSumVecs] = {};
    std::size_t i = 0;
    for (; i + kSums <= s_.count; i += kSums) {
      for (std::size_t v = 0; v < kVecsPerStrip; ++v) {
        add_vector(sums, v, i + v * Format::kLanes, WholeVector<Format>{});
      }
    }
    std::size_t v = 0;
    for (; i + Format::kLanes <= s_.count; i += Format::kLanes, ++v) {
      add_vector(sums, v, i, WholeVector<Format>{});
    }
    if (i < s_.count) add_vector(sums, v, i, FirstElements<Format>{.elements = s_.count - i});
    double in_order[kSums];
    __builtin_memcpy(in_order, sums, sizeof(sums));
    double total = 0.0;
    for (const double sum : in_order) total += sum;
    return total;
  }

 private:
  using Vec = typename Format::Vec;
  using Doubles = typename Isa::Doubles;
  // Element i is added to sum i % kSums, so the bits do not depend on the width of vectors. This
  // number of sums overlaps the additions and fits into registers.
  static constexpr std::size_t kSums = 16;
  static constexpr std::size_t kVecsPerStrip = kSums / Format::kLanes;
  static constexpr std::size_t kSumVecs = kSums * sizeof(double) / sizeof(Doubles);
  static constexpr std::size_t kSumVecsPerVec = kSumVecs / kVecsPerStrip;

  // `first_element` is the first of the v-th vector of a strip.
  template <class Memory>
  [[gnu::always_inline]] void add_vector(Doubles* sums, std::size_t v, std::size_t first_element,
                                         Memory memory) const {
    const Vec vec =
        sum_of<Format>(s_.inputs, s_.input_count, first_element * Format::kElementBytes, memory);
    if constexpr (kSumVecsPerVec == 1) {
      sums[v] = sums[v] + vec * vec;
    } else {
      Vector<float, sizeof(Vec) / 2> parts[2];
      __builtin_memcpy(parts, &vec, sizeof(vec));
      for (std::size_t part = 0; part < 2; ++part) {
        const Doubles wide = Isa::to_doubles(parts[part]);
        Doubles& sum = sums[2 * v + part];
        sum = sum + wide * wide;  // 48 bits: exact
      }
    }
  }

  const Squaring s_;
};

template <class Isa>
double sum_of_squares_loops(const Squaring& squaring) {
  switch (squaring.dtype) {
    case DType::kFloat16:
      return SquareLoop<Isa, Float16<Isa>>(squaring).run();
    case DType::kBFloat16:
      return SquareLoop<Isa, BFloat16<Isa>>(squaring).run();
    case DType::kFloat32:
      return SquareLoop<Isa, Plain<Isa, float>>(squaring).run();
    case DType::kFloat64:
      return SquareLoop<Isa, Plain<Isa, double>>(squaring).run();
    default:
      CIRANDA_UNREACHABLE();
  }
}

}  // namespace
}  // namespace ciranda::kernels
