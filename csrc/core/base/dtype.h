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

// What a user's tensor has whose values or bytes travel as another of the above. Ranks agree on it
// too: int16 and int32 would be added up, and an int16 sent to a float16, without a word. The
// values are on the wire: append only.
enum class UserDType : std::uint8_t {
  kSame = 0,  // as they travel
  kBool = 1,
  kInt16 = 2,
  kUInt16 = 3,
  kUInt32 = 4,
  kUInt64 = 5,
  kFloat8E4M3 = 6,
  kFloat8E5M2 = 7,
  kFloat8E4M3Fnuz = 8,
  kFloat8E5M2Fnuz = 9,
  kFloat8E8M0Fnu = 10,
  kComplex32 = 11,
  kComplex64 = 12,
  kComplex128 = 13,
  kOther = 14,  // torch has some that are bits without arithmetic
  kUInt8 = 15,
  kInt8 = 16,
  kInt32 = 17,
};
inline constexpr int kUserDTypeCount = 18;

constexpr std::string_view user_dtype_name(UserDType user, DType travels_as) {
  constexpr std::string_view kNames[kUserDTypeCount] = {"",
                                                        "bool",
                                                        "int16",
                                                        "uint16",
                                                        "uint32",
                                                        "uint64",
                                                        "float8_e4m3fn",
                                                        "float8_e5m2",
                                                        "float8_e4m3fnuz",
                                                        "float8_e5m2fnuz",
                                                        "float8_e8m0fnu",
                                                        "complex32",
                                                        "complex64",
                                                        "complex128",
                                                        "another dtype",
                                                        "uint8",
                                                        "int8",
                                                        "int32"};
  return user == UserDType::kSame ? dtype_name(travels_as) : kNames[static_cast<std::size_t>(user)];
}

// Each number is two of `dtype`: the last dimension that travels is 2 and not the user's.
constexpr bool travels_in_pairs(UserDType user, DType dtype) {
  const bool is_complex = user >= UserDType::kComplex32 && user <= UserDType::kComplex128;
  const int power = static_cast<int>(user) - static_cast<int>(UserDType::kComplex32);
  return is_complex && dtype_bytes(dtype) == std::size_t{2} << power;
}

}  // namespace ciranda
