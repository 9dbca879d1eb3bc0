#include "core/member/leases.h"

#include <algorithm>

namespace ciranda::member {

void Leases::hear(Incarnation incarnation, HostNumber host, bool is_beat, std::uint64_t now_ns) {
  if (lease_ns_ == 0) return;
  if (is_beat || heard_.contains(incarnation))
    heard_[incarnation] = {.host = host, .at_ns = now_ns};
}

std::vector<Incarnation> Leases::end(std::uint64_t now_ns) {
  const bool stood_still = now_ns > looked_at_ns_ + lease_ns_ / 2;
  looked_at_ns_ = now_ns;
  std::vector<Incarnation> silent;
  for (auto& [incarnation, heard] : heard_) {
    if (stood_still) heard.at_ns = now_ns;
    const auto host = hosts_.find(heard.host);
    const std::uint64_t until_ns = host == hosts_.end() ? now_ns : host->second;
    if (until_ns >= heard.at_ns + lease_ns_) silent.push_back(incarnation);
  }
  for (const Incarnation each : silent) close(each);
  return silent;
}

std::optional<std::uint64_t> Leases::deadline() const {
  if (lease_ns_ == 0) return std::nullopt;
  return looked_at_ns_ + std::max<std::uint64_t>(1, lease_ns_ / 4);
}

}  // namespace ciranda::member
