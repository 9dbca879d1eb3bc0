#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/kernels/formats.h"
#include "core/kernels/vectors.h"

// Arithmetic on vectors of a format (formats.h): combines two, scales one, sums over inputs.
// Anonymous for the same reason as vectors.h.
namespace ciranda::kernels {
namespace {

// Signed integers wrap: they are added and multiplied as unsigned ones of the same size.
template <class T>
using Wrapping = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>,
                                             std::type_identity<T>>::type;

template <class Format>
using WrappingVec = Vector<Wrapping<typename Format::Element>, sizeof(typename Format::Vec)>;

template <class Format>
struct Sum {
  using Vec = typename Format::Vec;
  using Wrap = WrappingVec<Format>;
  static Vec combine(Vec so_far, Vec next) {
    return reinterpret_cast<Vec>(reinterpret_cast<Wrap>(so_far) + reinterpret_cast<Wrap>(next));
  }
};

template <class Format>
struct Product {
  using Vec = typename Format::Vec;
  using Wrap = WrappingVec<Format>;
  static Vec combine(Vec so_far, Vec next) {
    return reinterpret_cast<Vec>(reinterpret_cast<Wrap>(so_far) * reinterpret_cast<Wrap>(next));
  }
};

// For the minimum and maximum a NaN on either side wins, and of equal numbers (-0.0 and 0.0) the
// earlier one. Asked of `next` instead, clang 14 compares halves lane by lane.
template <class Format>
struct Min {
  using Vec = typename Format::Vec;
  static Vec combine(Vec so_far, Vec next) {
    return ((so_far <= next) | (so_far != so_far)) ? so_far : next;
  }
};

template <class Format>
struct Max {
  using Vec = typename Format::Vec;
  static Vec combine(Vec so_far, Vec next) {
    return ((so_far >= next) | (so_far != so_far)) ? so_far : next;
  }
};

template <class Format, bool kFloating = std::is_floating_point_v<typename Format::Element>>
class Scale {
 public:
  using Vec = typename Format::Vec;
  explicit Scale(double factor) : factor_(static_cast<typename Format::Element>(factor)) {}
  Vec operator()(Vec vec) const { return vec * factor_; }

 private:
  typename Format::Element factor_;
};

template <class Format>
class Scale<Format, /*kFloating=*/false> {
 public:
  using Vec = typename Format::Vec;
  using Int = typename Format::Element;

  explicit Scale(double factor) : factor_(factor), divisor_(whole_reciprocal(factor)) {}

  Vec operator()(Vec vec) const {
    if (factor_ == 1.0) return vec;  // exact, also where double is too short for an int64
    return scaled(vec);
  }

 private:
  // n if factor is 1/n, else 0. An average divides: 49 * (1.0 / 49) is less than 1 and would
  // truncate to 0.
  static std::int64_t whole_reciprocal(double factor) {
    constexpr double kDivisorMax = 1 << 30;
    const double reciprocal = 1.0 / factor;
    if (!(reciprocal >= 2.0 && reciprocal <= kDivisorMax)) return 0;
    const std::int64_t divisor = __builtin_llround(reciprocal);
    return factor == 1.0 / static_cast<double>(divisor) ? divisor : 0;
  }

  // Out of line: rarely called, and long once unrolled over the lanes.
  [[gnu::noinline]] Vec scaled(Vec vec) const {
    Int lanes[Format::kLanes];
    __builtin_memcpy(lanes, &vec, sizeof(vec));
    if (divisor_ != 0) {
      for (Int& lane : lanes) lane = divided(lane);
    } else {
      for (Int& lane : lanes) lane = clamped(static_cast<double>(lane) * factor_);
    }
    return load_vector<Vec>(lanes);
  }

  Int divided(Int value) const {
    // Up to 32 bits a quotient of doubles truncates to the right integer, and it vectorises.
    if constexpr (sizeof(Int) <= 4) {
      return static_cast<Int>(static_cast<double>(value) / static_cast<double>(divisor_));
    } else {
      return value / divisor_;
    }
  }

  static Int clamped(double value) {
    constexpr Int kMin = std::numeric_limits<Int>::min();
    constexpr Int kMax = std::numeric_limits<Int>::max();
    if (!(value < static_cast<double>(kMax))) return kMax;
    if (!(value > static_cast<double>(kMin))) return kMin;
    return static_cast<Int>(value);
  }

  double factor_;
  std::int64_t divisor_;
};

// Sums the vectors at `offset` of the inputs in their order, as ReduceLoop does.
template <class Format, class Memory>
[[gnu::always_inline]] inline typename Format::Vec sum_of(const std::byte* const* inputs,
                                                          std::size_t input_count,
                                                          std::size_t offset, Memory memory) {
  auto sum = memory.load(inputs[0] + offset);
  for (std::size_t i = 1; i < input_count; ++i) sum = sum + memory.load(inputs[i] + offset);
  return sum;
}

}  // namespace
}  // namespace ciranda::kernels
