#pragma once

#include <cstdint>

// Which sanitizer watches this build: clang says it as a feature, GCC by a macro.
namespace ciranda::testing {

#if defined(__has_feature)
inline constexpr bool kUnderAsan = __has_feature(address_sanitizer);
inline constexpr bool kUnderTsan = __has_feature(thread_sanitizer);
#else
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kUnderAsan = true;
#else
inline constexpr bool kUnderAsan = false;
#endif
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kUnderTsan = true;
#else
inline constexpr bool kUnderTsan = false;
#endif
#endif

// How many random cases a test tries, of those that it tries without a sanitizer, which makes each
// five to ten times as long.
constexpr std::uint32_t tries(std::uint32_t usual) {
  return kUnderAsan || kUnderTsan ? usual / 5 : usual;
}

}  // namespace ciranda::testing
