#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ciranda {

// Element types that travel and are reduced. The values are on the wire: append only.
enum class DType : std::uint8_t {
  kUInt8 = 0,
  kInt8 = 1,
  kInt32 = 2,
  kInt64 = 3,
  kFloat16 = 4,
  kBFloat16 = 5,
  kFloat32 = 6,
  kFloat64 = 7,
};
inline constexpr int kDTypeCount = 8;

constexpr std::size_t dtype_bytes(DType dtype) {
  constexpr std::size_t kBytes[kDTypeCount] = {1, 1, 4, 8, 2, 2, 4, 8};
  return kBytes[static_cast<std::size_t>(dtype)];
}

constexpr bool is_floating(DType dtype) {
  return dtype >= DType::kFloat16;
}

constexpr std::string_view dtype_name(DType dtype) {
  constexpr std::string_view kNames[kDTypeCount] = {"uint8",   "int8",     "int32",   "int64",
                                                    "float16", "bfloat16", "float32", "float64"};
  return kNames[static_cast<std::size_t>(dtype)];
}

}  // namespace ciranda
