#include "core/ps/decide/leases.h"

#include <algorithm>

namespace ciranda::ps {

bool Leases::hear(Caller caller, std::uint64_t now_ns) {
  const auto found = leases_.find(caller);
  if (found == leases_.end()) return false;
  Lease& lease = found->second;
  lease.heard_ns = now_ns;
  return std::exchange(lease.silent, false);
}

std::vector<Caller> Leases::silent() const {
  std::vector<Caller> silent;
  for (const auto& [caller, lease] : leases_) {
    if (lease.silent) silent.push_back(caller);
  }
  return silent;
}

std::uint64_t Leases::next_ns() const {
  std::uint64_t next = wait_ends_ns_;
  for (const auto& [caller, lease] : leases_) {
    if (!lease.silent) next = std::min(next, lease.heard_ns + lease_ns_);
  }
  return next;
}

std::vector<Caller> Leases::end(std::uint64_t now_ns) {
  std::vector<Caller> ended;
  for (auto& [caller, lease] : leases_) {
    if (lease.silent || now_ns < lease.heard_ns + lease_ns_) continue;
    lease.silent = true;
    ended.push_back(caller);
  }
  return ended;
}

bool Leases::end_wait(std::uint64_t now_ns) {
  if (now_ns < wait_ends_ns_) return false;
  wait_ends_ns_ = UINT64_MAX;
  return true;
}

}  // namespace ciranda::ps
