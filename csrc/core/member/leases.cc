#include "core/member/leases.h"

#include <algorithm>

namespace ciranda::member {

void Leases::hear(Incarnation incarnation, bool is_beat, std::uint64_t now_ns) {
  if (lease_ns_ == 0) return;
  if (is_beat || heard_at_ns_.contains(incarnation)) heard_at_ns_[incarnation] = now_ns;
}

std::vector<Incarnation> Leases::end(std::uint64_t now_ns) {
  const bool stood_still = now_ns > looked_at_ns_ + lease_ns_ / 2;
  looked_at_ns_ = now_ns;
  std::vector<Incarnation> silent;
  for (auto& [incarnation, heard_at_ns] : heard_at_ns_) {
    if (stood_still) heard_at_ns = now_ns;
    if (now_ns - heard_at_ns >= lease_ns_) silent.push_back(incarnation);
  }
  for (const Incarnation each : silent) close(each);
  return silent;
}

std::optional<std::uint64_t> Leases::deadline() const {
  if (lease_ns_ == 0) return std::nullopt;
  return looked_at_ns_ + std::max<std::uint64_t>(1, lease_ns_ / 4);
}

}  // namespace ciranda::member
