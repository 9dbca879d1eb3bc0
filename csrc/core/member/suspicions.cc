#include "core/member/suspicions.h"

#include <algorithm>
#include <tuple>

#include "core/base/assert.h"

namespace ciranda::member {

void Suspicions::add(HostNumber by, HostNumber whom, std::uint64_t now_ns) {
  CIRANDA_ASSERT(by != whom);
  if (cuts_.empty()) since_ns_ = now_ns;
  cuts_.insert({by, whom});
  cuts_.insert({whom, by});
}

void Suspicions::clear() {
  cuts_.clear();
  since_ns_.reset();
}

std::optional<std::uint64_t> Suspicions::deadline() const {
  if (!since_ns_) return std::nullopt;
  return *since_ns_ + grace_ns_;
}

std::optional<Suspicions::Verdict> Suspicions::judge(const std::map<HostNumber, int>& members) {
  since_ns_.reset();
  std::map<HostNumber, int> out_of_reach;  // members, by the host that cannot reach them
  for (const auto& [host, other] : cuts_) {
    const auto there = members.find(other);
    if (there != members.end() && members.contains(host)) out_of_reach[host] += there->second;
  }
  if (out_of_reach.empty()) return std::nullopt;
  const auto worst = std::ranges::max_element(out_of_reach, {}, [&](const auto& each) {
    return std::tuple(each.second, -members.at(each.first), each.first);
  });
  const auto cut = std::ranges::find_if(cuts_, [&](const auto& each) {
    return each.first == worst->first && members.contains(each.second);
  });
  CIRANDA_ASSERT(cut != cuts_.end());
  return Verdict{.host = cut->first, .by = cut->second};
}

}  // namespace ciranda::member
