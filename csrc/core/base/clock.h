#pragma once

#include <cstdint>
#include <ctime>

namespace ciranda {

inline constexpr std::uint64_t kNever = UINT64_MAX;  // as a deadline
inline constexpr std::uint64_t kMsInNs = 1'000'000;
inline constexpr std::uint64_t kSecondNs = 1000 * kMsInNs;

inline std::uint64_t read_clock_ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(now.tv_nsec);
}

// Returns nanoseconds of the monotonic clock; a call takes tens of nanoseconds. No decision is ever
// taken from the wall clock.
inline std::uint64_t monotonic_ns() {
  return read_clock_ns(CLOCK_MONOTONIC);
}

// Returns the time of the kernel's last tick, up to 10 ms ago; a call takes a few nanoseconds.
inline std::uint64_t coarse_monotonic_ns() {
  return read_clock_ns(CLOCK_MONOTONIC_COARSE);
}

// Returns microseconds of the wall clock since 1970. Its only use is a number that grows from one
// start of a process to the next, on any host.
inline std::uint64_t wall_clock_us() {
  return read_clock_ns(CLOCK_REALTIME) / 1'000;
}

}  // namespace ciranda
