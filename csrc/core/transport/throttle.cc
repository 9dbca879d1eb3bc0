#include "core/transport/throttle.h"

#include <algorithm>

namespace ciranda {

bool Throttle::admit(Source source, std::uint64_t now_ns) {
  if (full_ns_.size() >= kSourcesMax && !full_ns_.contains(source)) full_ns_.clear();
  std::uint64_t& full_ns = full_ns_[source];
  const std::uint64_t then_ns = std::max(full_ns, now_ns) + turn_ns_;
  if (then_ns - now_ns > allowance_ns_) return false;
  full_ns = then_ns;
  return true;
}

void Throttle::give_back(Source source) {
  const auto found = full_ns_.find(source);
  if (found != full_ns_.end()) found->second -= turn_ns_;
}

}  // namespace ciranda
