#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

namespace ciranda {

// When a rank entered a barrier and when it left it, by its host's monotonic clock.
struct BarrierTimes {
  std::uint64_t begin_ns = 0, end_ns = 0;
};

// How far a host's monotonic clock was ahead of host 0's when it showed `at_ns`. The error is at
// most `error_ns`.
struct ClockReading {
  std::uint64_t at_ns = 0;
  std::int64_t ahead_ns = 0;
  std::int64_t error_ns = 0;
};

// Compares two clocks from what a rank of the host and rank 0 saw of the same barriers; one is
// enough. The result is exact, as with NTP, if frames take as long to host 0 as back. Otherwise it
// is off by half of the difference between the fastest trips each way. Pure.
ClockReading compare_clocks(std::span<const BarrierTimes> own,
                            std::span<const BarrierTimes> rank_0);

// Converts the time of a host's clock to host 0's. The difference between the two is taken to
// change evenly between two readings, and beyond them: quartzes drift by some microseconds a
// second. Pure.
class HostClock {
 public:
  HostClock() = default;  // host 0's own clock
  explicit HostClock(const ClockReading& first, const std::optional<ClockReading>& last = {})
      : first_(first), last_(last.value_or(first)) {}
  // Returns what host 0's clock showed when this one showed `own_ns`.
  std::uint64_t at_host_0(std::uint64_t own_ns) const;
  // Returns the largest error of at_host_0() between the readings.
  std::int64_t error_ns() const { return std::max(first_.error_ns, last_.error_ns); }

 private:
  ClockReading first_, last_;
};

}  // namespace ciranda
