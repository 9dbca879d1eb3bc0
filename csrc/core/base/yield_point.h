#pragma once

#include <cstdint>

namespace ciranda {

// Marks a point between two steps of a protocol between threads. A test of a TSan build can switch
// it on: other threads may then run first here, at random. Otherwise it does nothing.
#if defined(CIRANDA_YIELD_POINTS)
inline constexpr bool kYieldPoints = true;
void yield_point();
// Switches the yield points on; 0: off. Each thread derives its own sequence from the seed.
void set_yield_seed(std::uint64_t seed);
#else
inline constexpr bool kYieldPoints = false;
inline void yield_point() {}
inline void set_yield_seed(std::uint64_t) {}
#endif

}  // namespace ciranda
