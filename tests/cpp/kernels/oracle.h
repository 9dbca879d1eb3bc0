#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "core/kernels/variants.h"

// What the kernels should give, written with nothing of theirs: one element at a time, 16-bit
// floats through ldexp.
namespace ciranda::kernels::oracle {

// --- Floats of any width. ---

struct FloatLayout {
  int exponent_bits;
  int mantissa_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int infinity() const { return ((1 << exponent_bits) - 1) << mantissa_bits; }
};
inline constexpr FloatLayout kFloat16Layout = {.exponent_bits = 5, .mantissa_bits = 10};
inline constexpr FloatLayout kBFloat16Layout = {.exponent_bits = 8, .mantissa_bits = 7};

inline double decode(FloatLayout layout, std::uint16_t half) {
  const int magnitude = half & 0x7FFF;
  const int exponent = magnitude >> layout.mantissa_bits;
  const int mantissa = magnitude & ((1 << layout.mantissa_bits) - 1);
  const int hidden = exponent == 0 ? 0 : 1 << layout.mantissa_bits;
  double value =
      std::ldexp(hidden + mantissa, std::max(exponent, 1) - layout.bias() - layout.mantissa_bits);
  if (magnitude == layout.infinity()) value = std::numeric_limits<double>::infinity();
  if (magnitude > layout.infinity()) value = std::numeric_limits<double>::quiet_NaN();
  return (half & 0x8000) != 0 ? -value : value;
}

inline std::uint16_t encode(FloatLayout layout, double value) {
  if (std::isnan(value)) return 0x7FFF;
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  int bits = layout.infinity();
  if (magnitude < std::ldexp(1.0, layout.bias() + 1)) {
    const int exponent_min = 1 - layout.bias();
    const int exponent =
        magnitude == 0 ? exponent_min : std::max(std::ilogb(magnitude), exponent_min);
    const double units = std::nearbyint(std::ldexp(magnitude, layout.mantissa_bits - exponent));
    bits = ((exponent - exponent_min) << layout.mantissa_bits) + static_cast<int>(units);
  }
  return static_cast<std::uint16_t>(sign | bits);
}

// --- Elements of a DType in memory: `Stored` is read, computed with as `Computed`, written. ---

template <class T>
struct PlainElement {
  using Stored = T;
  using Computed = T;
  static T decode(T stored) { return stored; }
  static T encode(T computed) { return computed; }
};

template <const FloatLayout& kLayout>
struct HalfElement {
  using Stored = std::uint16_t;
  using Computed = float;
  static float decode(Stored stored) { return static_cast<float>(oracle::decode(kLayout, stored)); }
  static Stored encode(float computed) {
    return oracle::encode(kLayout, static_cast<double>(computed));
  }
};

// Calls visit(PlainElement<...>{}) or visit(HalfElement<...>{}).
template <class Visit>
auto visit_element(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::kUInt8:
      return visit(PlainElement<std::uint8_t>{});
    case DType::kInt8:
      return visit(PlainElement<std::int8_t>{});
    case DType::kInt32:
      return visit(PlainElement<std::int32_t>{});
    case DType::kInt64:
      return visit(PlainElement<std::int64_t>{});
    case DType::kFloat16:
      return visit(HalfElement<kFloat16Layout>{});
    case DType::kBFloat16:
      return visit(HalfElement<kBFloat16Layout>{});
    case DType::kFloat32:
      return visit(PlainElement<float>{});
    case DType::kFloat64:
    case DType::kFloat8E4M3:  // not computed with
    case DType::kFloat8E5M2:
      break;
  }
  return visit(PlainElement<double>{});
}

// --- Arithmetic of one element. ---

template <class T>
T scaled(T value, double factor) {
  if constexpr (std::is_floating_point_v<T>) {
    return value * static_cast<T>(factor);
  } else {
    if (factor == 1.0) return value;
    const double divisor = std::nearbyint(1.0 / factor);
    if (divisor >= 2.0 && divisor <= 0x1p30 && 1.0 / divisor == factor) {
      return static_cast<T>(static_cast<std::int64_t>(value) / static_cast<std::int64_t>(divisor));
    }
    // On x86 a long double holds every int64 and every double.
    const auto limit_low = static_cast<long double>(std::numeric_limits<T>::min());
    const auto limit_high = static_cast<long double>(std::numeric_limits<T>::max());
    const double product = std::trunc(static_cast<double>(value) * factor);
    if (static_cast<long double>(product) <= limit_low) return std::numeric_limits<T>::min();
    if (static_cast<long double>(product) >= limit_high) return std::numeric_limits<T>::max();
    return static_cast<T>(product);
  }
}

template <class T>
T combined(ReduceOp op, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
  }
  if (op == ReduceOp::kMin) return std::min(a, b);
  if (op == ReduceOp::kMax) return std::max(a, b);
  if constexpr (std::is_floating_point_v<T>) {
    return op == ReduceOp::kProduct ? a * b : a + b;
  } else {
    const auto wide_a = static_cast<std::uint64_t>(a);
    const auto wide_b = static_cast<std::uint64_t>(b);
    return static_cast<T>(op == ReduceOp::kProduct ? wide_a * wide_b : wide_a + wide_b);
  }
}

// --- The whole reduction. ---

using Bytes = std::vector<std::byte>;

template <class T>
T element_at(const Bytes& bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void set_element(Bytes& bytes, std::size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
}

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <class T>
std::vector<T> values_of(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

struct Scales {
  double pre = 1.0;
  double post = 1.0;
};

inline Bytes reduce(DType dtype, ReduceOp op, Scales scales, const std::vector<Bytes>& inputs) {
  return visit_element(dtype, [&](auto element) {
    using Element = decltype(element);
    using Stored = typename Element::Stored;
    Bytes result(inputs[0].size());
    for (std::size_t i = 0; i < result.size() / sizeof(Stored); ++i) {
      auto so_far = scaled(Element::decode(element_at<Stored>(inputs[0], i)), scales.pre);
      for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
        const auto next = Element::decode(element_at<Stored>(inputs[rank], i));
        so_far = combined(op, so_far, scaled(next, scales.pre));
      }
      set_element<Stored>(result, i, Element::encode(scaled(so_far, scales.post)));
    }
    return result;
  });
}

// --- Comparing and making. ---

// The same bits, but any NaN is as good as another.
inline ::testing::AssertionResult same(DType dtype, const Bytes& got, const Bytes& want) {
  if (got.size() != want.size()) return ::testing::AssertionFailure() << "sizes differ";
  return visit_element(dtype, [&](auto element) -> ::testing::AssertionResult {
    using Element = decltype(element);
    using Stored = typename Element::Stored;
    for (std::size_t i = 0; i < got.size() / sizeof(Stored); ++i) {
      const auto g = element_at<Stored>(got, i);
      const auto w = element_at<Stored>(want, i);
      if (std::memcmp(&g, &w, sizeof(g)) == 0) continue;
      const auto g_value = Element::decode(g);
      const auto w_value = Element::decode(w);
      if (g_value != g_value && w_value != w_value) continue;
      return ::testing::AssertionFailure()
             << "element " << i << " is " << +g_value << ", should be " << +w_value;
    }
    return ::testing::AssertionSuccess();
  });
}

// Every bit random: integers that wrap, floats with NaN, infinities and subnormals.
inline Bytes random_bits(std::mt19937_64& random, std::size_t bytes) {
  Bytes result(bytes);
  for (std::byte& byte : result) byte = static_cast<std::byte>(random());
  return result;
}

// Random, but floats are of about one size, so that sums round instead of overflowing.
inline Bytes random_elements(std::mt19937_64& random, DType dtype, std::size_t count) {
  if (!is_floating(dtype)) return random_bits(random, count * dtype_bytes(dtype));
  return visit_element(dtype, [&](auto element) {
    using Element = decltype(element);
    std::vector<typename Element::Stored> values(count);
    std::normal_distribution<double> normal(0.0, 2.0);
    for (auto& value : values) {
      value = Element::encode(static_cast<typename Element::Computed>(normal(random)));
    }
    return bytes_of(values);
  });
}

// --- The variants as test parameters. ---

inline std::vector<const Variant*> available_variants() {
  std::vector<const Variant*> result;
  for (const Variant& variant : variants()) {
    if (variant.available()) result.push_back(&variant);
  }
  return result;
}

inline std::string variant_name(const ::testing::TestParamInfo<const Variant*>& info) {
  return info.param->name;
}

}  // namespace ciranda::kernels::oracle
