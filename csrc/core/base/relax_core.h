#pragma once

namespace ciranda {

// Between two looks for news: leaves the core's units to its other thread.
inline void relax_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace ciranda
