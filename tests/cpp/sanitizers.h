#pragma once

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

}  // namespace ciranda::testing
