#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/base/assert.h"
#include "core/kernels/variants.h"
#include "core/kernels/vectors.h"

// The loops themselves, for an instruction set `Isa` (see reduce_portable.cc for what it holds).
// Anonymous for the same reason as vectors.h.
namespace ciranda::kernels {
namespace {

// --- Formats: how elements lie in memory, and the vector in which they are computed. ---

template <class Isa, class T>
struct Plain {
  using Element = T;
  using Vec = Vector<T, Isa::kVectorBytes>;
  using Stored = Vec;
  static constexpr std::size_t kElementBytes = sizeof(T);
  static constexpr std::size_t kLanes = Isa::kVectorBytes / sizeof(T);
  static Vec load(const std::byte* from) { return load_vector<Vec>(from); }
  static Stored pack(Vec vec) { return vec; }
};

template <class Isa>
struct Half {
  using Element = float;
  using Vec = Vector<float, Isa::kVectorBytes>;
  using Stored = Vector<std::uint16_t, Isa::kVectorBytes / 2>;
  static constexpr std::size_t kElementBytes = 2;
  static constexpr std::size_t kLanes = Isa::kVectorBytes / sizeof(float);
};

template <class Isa>
struct Float16 : Half<Isa> {
  using typename Half<Isa>::Vec;
  using typename Half<Isa>::Stored;
  static Vec load(const std::byte* from) { return Isa::from_float16(load_vector<Stored>(from)); }
  static Stored pack(Vec vec) { return Isa::to_float16(vec); }
};

template <class Isa>
struct BFloat16 : Half<Isa> {
  using typename Half<Isa>::Vec;
  using typename Half<Isa>::Stored;
  static Vec load(const std::byte* from) { return Isa::from_bfloat16(load_vector<Stored>(from)); }
  static Stored pack(Vec vec) { return Isa::to_bfloat16(vec); }
};

template <class Format>
constexpr std::size_t kVecBytesStored = Format::kLanes* Format::kElementBytes;

template <class Format>
inline typename Format::Vec load_first(const std::byte* from, std::size_t elements) {
  std::byte padded[kVecBytesStored<Format>] = {};
  __builtin_memcpy(padded, from, elements * Format::kElementBytes);
  return Format::load(padded);
}

template <class Format>
inline void store_first(std::byte* to, typename Format::Vec vec, std::size_t elements) {
  const typename Format::Stored packed = Format::pack(vec);
  __builtin_memcpy(to, &packed, elements * Format::kElementBytes);
}

// --- Operations on vectors. ---

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

// --- Scales. ---

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

  // Out of line: rare, and long once unrolled over the lanes.
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

// --- Reduce. ---

template <class Format, template <class> class Op, bool kScaled>
class ReduceLoop {
 public:
  explicit ReduceLoop(const Reduction& reduction)
      : r_(reduction), prescale_(reduction.prescale), postscale_(reduction.postscale) {}

  void run() const {
    constexpr std::size_t kLanes = Format::kLanes;
    std::size_t i = 0;
    for (; i + kVecsPerStrip * kLanes <= r_.count; i += kVecsPerStrip * kLanes) {
      reduce_strip<kVecsPerStrip>(i);
    }
    for (; i + kLanes <= r_.count; i += kLanes) reduce_strip<1>(i);
    if (i < r_.count) reduce_rest(i, r_.count - i);
  }

 private:
  using Vec = typename Format::Vec;
  // Enough to hide an addition behind the others, few enough to stay in 16 registers.
  static constexpr std::size_t kVecsPerStrip = 4;

  // All inputs of a strip are read before any output of it is written: they may be one memory.
  template <std::size_t kVecs>
  void reduce_strip(std::size_t first_element) const {
    const std::size_t offset = first_element * Format::kElementBytes;
    Vec so_far[kVecs];
    for (std::size_t v = 0; v < kVecs; ++v) {
      so_far[v] = prescaled(Format::load(r_.inputs[0] + offset + v * kVecBytesStored<Format>));
    }
    for (std::size_t input = 1; input < r_.input_count; ++input) {
      const std::byte* from = r_.inputs[input] + offset;
      for (std::size_t v = 0; v < kVecs; ++v) {
        const Vec next = prescaled(Format::load(from + v * kVecBytesStored<Format>));
        so_far[v] = Op<Format>::combine(so_far[v], next);
      }
    }
    typename Format::Stored packed[kVecs];  // once for all outputs
    for (std::size_t v = 0; v < kVecs; ++v) packed[v] = Format::pack(postscaled(so_far[v]));
    for (std::size_t output = 0; output < r_.output_count; ++output) {
      std::byte* to = r_.outputs[output] + offset;
      for (std::size_t v = 0; v < kVecs; ++v) {
        store_vector(to + v * kVecBytesStored<Format>, packed[v]);
      }
    }
  }

  // Fewer elements than a vector has lanes.
  void reduce_rest(std::size_t first_element, std::size_t elements) const {
    const std::size_t offset = first_element * Format::kElementBytes;
    Vec so_far = prescaled(load_first<Format>(r_.inputs[0] + offset, elements));
    for (std::size_t input = 1; input < r_.input_count; ++input) {
      const Vec next = prescaled(load_first<Format>(r_.inputs[input] + offset, elements));
      so_far = Op<Format>::combine(so_far, next);
    }
    so_far = postscaled(so_far);
    for (std::size_t output = 0; output < r_.output_count; ++output) {
      store_first<Format>(r_.outputs[output] + offset, so_far, elements);
    }
  }

  Vec prescaled(Vec vec) const {
    if constexpr (kScaled) return prescale_(vec);
    return vec;
  }
  Vec postscaled(Vec vec) const {
    if constexpr (kScaled) return postscale_(vec);
    return vec;
  }

  const Reduction r_;
  const Scale<Format> prescale_;
  const Scale<Format> postscale_;
};

template <class Format, template <class> class Op>
void reduce_format_op(const Reduction& reduction) {
  if (reduction.prescale == 1.0 && reduction.postscale == 1.0) {
    ReduceLoop<Format, Op, /*kScaled=*/false>(reduction).run();
  } else {
    ReduceLoop<Format, Op, /*kScaled=*/true>(reduction).run();
  }
}

template <class Format>
void reduce_format(const Reduction& reduction) {
  switch (reduction.op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return reduce_format_op<Format, Sum>(reduction);
    case ReduceOp::kMin:
      return reduce_format_op<Format, Min>(reduction);
    case ReduceOp::kMax:
      return reduce_format_op<Format, Max>(reduction);
    case ReduceOp::kProduct:
      return reduce_format_op<Format, Product>(reduction);
  }
  CIRANDA_UNREACHABLE();
}

template <class Isa>
void reduce_loops(const Reduction& reduction) {
  switch (reduction.dtype) {
    case DType::kUInt8:
      return reduce_format<Plain<Isa, std::uint8_t>>(reduction);
    case DType::kInt8:
      return reduce_format<Plain<Isa, std::int8_t>>(reduction);
    case DType::kInt32:
      return reduce_format<Plain<Isa, std::int32_t>>(reduction);
    case DType::kInt64:
      return reduce_format<Plain<Isa, std::int64_t>>(reduction);
    case DType::kFloat16:
      return reduce_format<Float16<Isa>>(reduction);
    case DType::kBFloat16:
      return reduce_format<BFloat16<Isa>>(reduction);
    case DType::kFloat32:
      return reduce_format<Plain<Isa, float>>(reduction);
    case DType::kFloat64:
      return reduce_format<Plain<Isa, double>>(reduction);
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      break;  // refused by check_limits
  }
  CIRANDA_UNREACHABLE();
}

// --- Cast. ---

// Rounds to odd: an inexact result gets an odd last bit, so that rounding it again, to a half, is
// as if the double had been rounded once.
inline float round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  const auto widened = static_cast<double>(nearest);
  if (widened == value || value != value) return nearest;
  auto bits = __builtin_bit_cast(std::uint32_t, nearest);
  if (__builtin_fabs(widened) > __builtin_fabs(value)) --bits;
  return __builtin_bit_cast(float, bits | 1u);
}

// Elements in float32, which every format but float64 fits exactly.
template <class From, class To>
void cast_as_floats(const Casting& c) {
  static_assert(From::kLanes == To::kLanes);
  const Scale<From> scale(c.factor);
  std::size_t i = 0;
  for (; i + From::kLanes <= c.count; i += From::kLanes) {
    const auto scaled = scale(From::load(c.from + i * From::kElementBytes));
    store_vector(c.to + i * To::kElementBytes, To::pack(scaled));
  }
  const std::size_t rest = c.count - i;
  if (rest == 0) return;
  const auto last = scale(load_first<From>(c.from + i * From::kElementBytes, rest));
  store_first<To>(c.to + i * To::kElementBytes, last, rest);
}

template <class From>
void cast_to_doubles(const Casting& c) {
  for (std::size_t i = 0; i < c.count; i += From::kLanes) {
    const std::size_t rest = c.count - i;
    const std::size_t elements = rest < From::kLanes ? rest : From::kLanes;
    const auto floats = load_first<From>(c.from + i * From::kElementBytes, elements);
    double doubles[From::kLanes];
    for (std::size_t lane = 0; lane < From::kLanes; ++lane) {
      doubles[lane] = static_cast<double>(floats[lane]) * c.factor;
    }
    __builtin_memcpy(c.to + i * sizeof(double), doubles, elements * sizeof(double));
  }
}

template <class To, float (*kRound)(double)>
void cast_from_doubles(const Casting& c) {
  for (std::size_t i = 0; i < c.count; i += To::kLanes) {
    const std::size_t rest = c.count - i;
    const std::size_t elements = rest < To::kLanes ? rest : To::kLanes;
    double doubles[To::kLanes] = {};
    __builtin_memcpy(doubles, c.from + i * sizeof(double), elements * sizeof(double));
    typename To::Vec floats;
    for (std::size_t lane = 0; lane < To::kLanes; ++lane) {
      floats[lane] = kRound(doubles[lane] * c.factor);
    }
    store_first<To>(c.to + i * To::kElementBytes, floats, elements);
  }
}

inline float round_to_nearest(double value) {
  return static_cast<float>(value);
}

template <class Isa>
void cast_from_doubles(const Casting& c) {
  switch (c.to_dtype) {
    case DType::kFloat16:
      return cast_from_doubles<Float16<Isa>, round_to_odd>(c);
    case DType::kBFloat16:
      return cast_from_doubles<BFloat16<Isa>, round_to_odd>(c);
    case DType::kFloat32:
      return cast_from_doubles<Plain<Isa, float>, round_to_nearest>(c);
    case DType::kFloat64:
      return cast_as_floats<Plain<Isa, double>, Plain<Isa, double>>(c);
    default:
      CIRANDA_UNREACHABLE();
  }
}

template <class Isa, class From>
void cast_from(const Casting& c) {
  switch (c.to_dtype) {
    case DType::kFloat16:
      return cast_as_floats<From, Float16<Isa>>(c);
    case DType::kBFloat16:
      return cast_as_floats<From, BFloat16<Isa>>(c);
    case DType::kFloat32:
      return cast_as_floats<From, Plain<Isa, float>>(c);
    case DType::kFloat64:
      return cast_to_doubles<From>(c);
    default:
      CIRANDA_UNREACHABLE();
  }
}

template <class Isa>
void cast_loops(const Casting& c) {
  switch (c.from_dtype) {
    case DType::kFloat16:
      return cast_from<Isa, Float16<Isa>>(c);
    case DType::kBFloat16:
      return cast_from<Isa, BFloat16<Isa>>(c);
    case DType::kFloat32:
      return cast_from<Isa, Plain<Isa, float>>(c);
    case DType::kFloat64:
      return cast_from_doubles<Isa>(c);
    default:
      CIRANDA_UNREACHABLE();
  }
}

// --- What a peer sent. ---

template <class Isa, class Wire>
class AddArrivedLoop {
 public:
  explicit AddArrivedLoop(const Adding& adding) : a_(adding), postscale_(adding.postscale) {}

  void run() const {
    constexpr std::size_t kLanes = Wire::kLanes;
    std::size_t i = 0;
    for (; i + kLanes <= a_.count; i += kLanes) {
      const Vec sum = added(Own::load(a_.own + i * Own::kElementBytes),
                            Wire::load(a_.arrived + i * Wire::kElementBytes));
      for (std::size_t output = 0; output < a_.output_count; ++output) {
        store_vector(a_.outputs[output] + i * Own::kElementBytes, sum);
      }
    }
    const std::size_t rest = a_.count - i;
    if (rest == 0) return;
    const Vec sum = added(load_first<Own>(a_.own + i * Own::kElementBytes, rest),
                          load_first<Wire>(a_.arrived + i * Wire::kElementBytes, rest));
    for (std::size_t output = 0; output < a_.output_count; ++output) {
      store_first<Own>(a_.outputs[output] + i * Own::kElementBytes, sum, rest);
    }
  }

 private:
  using Own = Plain<Isa, float>;
  using Vec = typename Own::Vec;

  Vec added(Vec own, Vec arrived) const {
    const Vec sum = postscale_((a_.own_rounded ? rounded(own) : own) + arrived);
    return a_.result_rounded ? rounded(sum) : sum;
  }

  static Vec rounded(Vec vec) {
    const typename Wire::Stored packed = Wire::pack(vec);
    return Wire::load(reinterpret_cast<const std::byte*>(&packed));
  }

  const Adding a_;
  const Scale<Own> postscale_;
};

template <class Isa>
void add_arrived_loops(const Adding& adding) {
  if (adding.wire_dtype == DType::kFloat16) return AddArrivedLoop<Isa, Float16<Isa>>(adding).run();
  if (adding.wire_dtype == DType::kBFloat16) {
    return AddArrivedLoop<Isa, BFloat16<Isa>>(adding).run();
  }
  CIRANDA_UNREACHABLE();
}

}  // namespace
}  // namespace ciranda::kernels
