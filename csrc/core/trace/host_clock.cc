#include "core/trace/host_clock.h"

#include "core/base/assert.h"

namespace ciranda {
namespace {

// Returns a - b. Both are clock times, and neither is larger than INT64_MAX.
std::int64_t difference(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::int64_t>(a) - static_cast<std::int64_t>(b);
}

}  // namespace

// No rank leaves a barrier before all have entered it. So the largest `begin - end of rank 0` is
// the clock's lead, less the time of the fastest frame to host 0. Half of the fastest barrier
// stands for that time, because it covers the way there and back: host 0 orders the frames, and the
// last of them ends the barrier.
ClockReading compare_clocks(std::span<const BarrierTimes> own,
                            std::span<const BarrierTimes> rank_0) {
  CIRANDA_ASSERT(!own.empty() && own.size() == rank_0.size());
  std::int64_t at_least_ns = INT64_MIN;
  std::int64_t at_most_ns = INT64_MAX;
  std::int64_t fastest_ns = INT64_MAX;
  for (std::size_t i = 0; i < own.size(); ++i) {
    at_least_ns = std::max(at_least_ns, difference(own[i].begin_ns, rank_0[i].end_ns));
    at_most_ns = std::min(at_most_ns, difference(own[i].end_ns, rank_0[i].begin_ns));
    fastest_ns = std::min(fastest_ns, difference(own[i].end_ns, own[i].begin_ns));
  }
  const std::int64_t ahead_ns = std::min(at_least_ns + fastest_ns / 2, at_most_ns);
  return {.at_ns = own.back().end_ns,
          .ahead_ns = ahead_ns,
          .error_ns = std::max(ahead_ns - at_least_ns, at_most_ns - ahead_ns)};
}

std::uint64_t HostClock::at_host_0(std::uint64_t own_ns) const {
  const std::int64_t between_ns = difference(last_.at_ns, first_.at_ns);
  double drift = 0;
  if (between_ns > 0) {
    drift = static_cast<double>(last_.ahead_ns - first_.ahead_ns) / static_cast<double>(between_ns);
  }
  const auto since_first = static_cast<double>(difference(own_ns, first_.at_ns));
  const std::int64_t ahead_ns = first_.ahead_ns + static_cast<std::int64_t>(drift * since_first);
  return own_ns - static_cast<std::uint64_t>(ahead_ns);
}

}  // namespace ciranda
