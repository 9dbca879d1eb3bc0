#include "core/member/hosts.h"

#include <algorithm>
#include <utility>

#include "core/base/assert.h"

namespace ciranda::member {

Hosts::Hosts(std::vector<HostOptions> hosts) {
  for (HostOptions& each : hosts) hosts_.push_back({.options = std::move(each)});
}

const std::string& Hosts::meet_at(HostNumber host) const {
  static const std::string kNowhere;
  return are_named() ? hosts_.at(host).options.meet_at : kNowhere;
}

HostNumber Hosts::add(HostOptions host) {
  CIRANDA_ASSERT(are_named());
  hosts_.push_back({.options = std::move(host)});
  return static_cast<HostNumber>(hosts_.size() - 1);
}

void Hosts::lose(HostNumber host) {
  CIRANDA_ASSERT(are_named() && !is_lost(host));
  hosts_[host].is_lost = true;
}

bool Hosts::is_any_lost() const {
  return std::ranges::any_of(hosts_, &Host::is_lost);
}

bool Hosts::regain(HostNumber host, std::string meet_at) {
  if (!is_lost(host)) return false;
  hosts_[host] = {.options = {.slots = hosts_[host].options.slots, .meet_at = std::move(meet_at)}};
  return true;
}

std::optional<HostNumber> Hosts::with_room(HostNumber home,
                                           const std::map<HostNumber, int>& used) const {
  if (!are_named()) return home;
  const auto has_room = [&](HostNumber host) {
    const auto found = used.find(host);
    const int there = found == used.end() ? 0 : found->second;
    return !is_lost(host) && there < hosts_[host].options.slots;
  };
  if (has_room(home)) return home;
  for (HostNumber host = 0; host < hosts_.size(); ++host) {
    if (has_room(host)) return host;
  }
  return std::nullopt;
}

MemberPlace place_of_member(const NewEpoch& epoch, Incarnation incarnation) {
  CIRANDA_ASSERT(epoch.hosts.empty() || epoch.hosts.size() == epoch.members.size());
  const auto found = std::ranges::find(epoch.members, incarnation);
  CIRANDA_ASSERT(found != epoch.members.end());
  const auto own = static_cast<std::size_t>(found - epoch.members.begin());
  const auto host_of = [&](std::size_t rank) {
    return epoch.hosts.empty() ? 0 : epoch.hosts[rank];
  };
  MemberPlace place{.rank = static_cast<int>(own), .size = static_cast<int>(epoch.members.size())};
  std::vector<HostNumber> hosts;  // in the order of their first ranks
  for (std::size_t rank = 0; rank < epoch.members.size(); ++rank) {
    const HostNumber host = host_of(rank);
    if (std::ranges::find(hosts, host) == hosts.end()) hosts.push_back(host);
    if (host != host_of(own)) continue;
    if (rank == own) place.local_rank = static_cast<int>(place.here.size());
    place.here.push_back(epoch.members[rank]);
  }
  place.host = static_cast<int>(std::ranges::find(hosts, host_of(own)) - hosts.begin());
  place.hosts = static_cast<int>(hosts.size());
  CIRANDA_ASSERT((place.rank == 0) == (place.host == 0 && place.local_rank == 0));
  return place;
}

}  // namespace ciranda::member
