#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ciranda {

// Element types that travel and are reduced. The values are on the wire: append only. The float8
// types have torch's names; only NCCL reduces them.
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

// The floating-point types that the CPU computes with.
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

// The dtype of a user's tensor whose values or bytes travel as another DType. Ranks must agree on
// it too. Otherwise an int16 and an int32 tensor would be added up, or an int16 tensor sent to a
// float16 one, without an error. The values are on the wire: append only.
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
  kOther = 14,  // torch dtypes that are bits without arithmetic
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

// Returns true if each number of the user's travels as two values of `dtype`. The tensor that
// travels then has a last dimension of 2 that the user's tensor does not have.
constexpr bool travels_in_pairs(UserDType user, DType dtype) {
  const bool is_complex = user >= UserDType::kComplex32 && user <= UserDType::kComplex128;
  const int power = static_cast<int>(user) - static_cast<int>(UserDType::kComplex32);
  return is_complex && dtype_bytes(dtype) == std::size_t{2} << power;
}

}  // namespace ciranda
