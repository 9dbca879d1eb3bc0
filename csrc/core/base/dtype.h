#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ciranda {

// Element types that travel and are reduced. The values are on the wire: append only. The float8
// types bear torch's names; only NCCL reduces them.
enum class DType : std::uint8_t {
  kUInt8 = 0,
  kInt8 = 1,
  kInt32 = 2,
  kInt64 = 3,
  kFloat16 = 4,
  kBFloat16 = 5,
  kFloat32 = 6,
  kFloat64 = 7,
  kFloat8E4M3 = 8,
  kFloat8E5M2 = 9,
};
inline constexpr int kDTypeCount = 10;

constexpr std::size_t dtype_bytes(DType dtype) {
  constexpr std::size_t kBytes[kDTypeCount] = {1, 1, 4, 8, 2, 2, 4, 8, 1, 1};
  return kBytes[static_cast<std::size_t>(dtype)];
}

// The floating types that the CPU computes with.
constexpr bool is_floating(DType dtype) {
  return dtype >= DType::kFloat16 && dtype <= DType::kFloat64;
}

constexpr bool is_float8(DType dtype) {
  return dtype == DType::kFloat8E4M3 || dtype == DType::kFloat8E5M2;
}

constexpr std::string_view dtype_name(DType dtype) {
  constexpr std::string_view kNames[kDTypeCount] = {
      "uint8",    "int8",    "int32",   "int64",         "float16",
      "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"};
  return kNames[static_cast<std::size_t>(dtype)];
}

}  // namespace ciranda
