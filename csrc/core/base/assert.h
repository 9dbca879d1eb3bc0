#pragma once

namespace ciranda::internal {
// Prints the broken invariant and aborts. Never returns.
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line) noexcept;
}  // namespace ciranda::internal

// Aborts if an invariant of our own code is broken, also in release builds. Never applied to bytes
// from outside.
#define CIRANDA_ASSERT(condition)                                            \
  do {                                                                       \
    if (!(condition)) [[unlikely]]                                           \
      ::ciranda::internal::assertion_failed(#condition, __FILE__, __LINE__); \
  } while (false)

#define CIRANDA_UNREACHABLE() \
  ::ciranda::internal::assertion_failed("unreachable branch", __FILE__, __LINE__)
