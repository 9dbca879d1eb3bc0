#pragma once

#include <cstdint>

namespace ciranda {

// Stands between two steps of a protocol of threads. In a build for TSan, and only once a test has
// switched it on, other threads may go first there, by chance; anywhere else it is nothing.
#if defined(CIRANDA_YIELD_POINTS)
inline constexpr bool kYieldPoints = true;
void yield_point();
// 0: off. Each thread makes a sequence of its own of it.
void set_yield_seed(std::uint64_t seed);
#else
inline constexpr bool kYieldPoints = false;
inline void yield_point() {}
inline void set_yield_seed(std::uint64_t) {}
#endif

}  // namespace ciranda
