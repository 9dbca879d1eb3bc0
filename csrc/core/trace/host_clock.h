#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

namespace ciranda {

// When a rank entered a barrier and when it was through, by its host's monotonic clock.
struct BarrierTimes {
  std::uint64_t begin_ns = 0, end_ns = 0;
};

// By how much a host's monotonic clock was ahead of host 0's, when it showed `at_ns`; off by
// `error_ns` at most.
struct ClockReading {
  std::uint64_t at_ns = 0;
  std::int64_t ahead_ns = 0;
  std::int64_t error_ns = 0;
};

// From what a rank of the host and rank 0 saw of the same barriers, one or more. As with NTP exact
// where frames take as long to host 0 as back, else off by half of what the fastest ways differ.
// Pure.
ClockReading compare_clocks(std::span<const BarrierTimes> own,
                            std::span<const BarrierTimes> rank_0);

// A host's clock as host 0 sees it. Between two readings, and beyond, the difference changes
// evenly: quartzes drift by some microseconds a second. Pure.
class HostClock {
 public:
  HostClock() = default;  // host 0's own
  explicit HostClock(const ClockReading& first, const std::optional<ClockReading>& last = {})
      : first_(first), last_(last.value_or(first)) {}
  // What host 0's clock showed when this one showed `own_ns`.
  std::uint64_t at_host_0(std::uint64_t own_ns) const;
  // Of what at_host_0() says between the readings.
  std::int64_t error_ns() const { return std::max(first_.error_ns, last_.error_ns); }

 private:
  ClockReading first_, last_;
};

}  // namespace ciranda
