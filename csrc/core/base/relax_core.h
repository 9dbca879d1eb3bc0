#pragma once

namespace ciranda {

// Called between two polls: leaves the core's execution units to its other hardware thread.
inline void relax_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace ciranda
