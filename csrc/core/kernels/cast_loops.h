#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/assert.h"
#include "core/kernels/formats.h"
#include "core/kernels/variants.h"
#include "core/kernels/vector_ops.h"
#include "core/kernels/vectors.h"

// The loops of cast() for an instruction set `Isa` (formats.h). Anonymous for the same reason as
// vectors.h.
namespace ciranda::kernels {
namespace {

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

// Casts by way of float32, in which every format but float64 fits exactly.
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

}  // namespace
}  // namespace ciranda::kernels
