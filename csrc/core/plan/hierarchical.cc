#include "core/plan/hierarchical.h"

#include <algorithm>

#include "core/base/assert.h"

namespace ciranda {
namespace {

int host_of(const Hosts& hosts, Rank rank) {
  const auto host = std::find_if(hosts.begin(), hosts.end(), [&](const std::vector<Rank>& ranks) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  });
  CIRANDA_ASSERT(host != hosts.end());
  return static_cast<int>(host - hosts.begin());
}

// Returns true if the ranks are 0, 1, 2, … host after host.
bool consecutive(const Hosts& hosts) {
  Rank next = 0;
  for (const std::vector<Rank>& ranks : hosts) {
    for (const Rank rank : ranks) {
      if (rank != next++) return false;
    }
  }
  return true;
}

bool runs_flat(OpKind kind, const Hosts& hosts) {
  if (kind == OpKind::kAlltoall) return true;
  return (kind == OpKind::kAllgather || kind == OpKind::kReducescatter) && !consecutive(hosts);
}

int smallest_host(const Hosts& hosts) {
  std::size_t smallest = kRanksMax;
  for (const std::vector<Rank>& ranks : hosts) smallest = std::min(smallest, ranks.size());
  CIRANDA_ASSERT(smallest >= 1);
  return static_cast<int>(smallest);
}

// Returns the same collective with hosts as participants.
Collective among_hosts(const Collective& among_ranks, const Hosts& hosts) {
  Collective between = among_ranks;
  between.participants = static_cast<int>(hosts.size());
  if (among_ranks.kind == OpKind::kBroadcast) between.root = host_of(hosts, among_ranks.root);
  if (among_ranks.offsets.empty()) return between;
  between.offsets = {among_ranks.offsets.front()};
  std::size_t ranks = 0;
  for (const std::vector<Rank>& host : hosts) {
    ranks += host.size();
    between.offsets.push_back(among_ranks.offsets[ranks]);
  }
  return between;
}

Schedule plan(const Collective& collective, int self, const LinkSpeed& link, Grain grain,
              int lanes) {
  grain.channels *= lanes;
  return {collective, self, choose_algorithm(collective, link, grain), grain};
}

}  // namespace

Hosts flat_hosts(int ranks) {
  Hosts hosts;
  for (Rank rank = 0; rank < ranks; ++rank) hosts.push_back({rank});
  return hosts;
}

HierarchicalPlan::HierarchicalPlan(const Collective& among_ranks, const Hosts& hosts, Rank self,
                                   const LinkSpeed& link, Grain grain)
    : hosts_(hosts),
      self_(self),
      flat_(runs_flat(among_ranks.kind, hosts)),
      lanes_(flat_ ? 1 : smallest_host(hosts)),
      schedule_(flat_ ? plan(among_ranks, self, link, grain, lanes_)
                      : plan(among_hosts(among_ranks, hosts), host_of(hosts, self), link, grain,
                             lanes_)) {}

Rank HierarchicalPlan::rank(int participant, int channel) const {
  if (flat_) return participant;
  return hosts_[static_cast<std::size_t>(participant)][static_cast<std::size_t>(lane(channel))];
}

std::string to_string(const HierarchicalPlan& plan) {
  std::string text = plan.flat() ? "flat\n" : std::to_string(plan.lanes()) + " lanes\n";
  for (int channel = 0; channel < plan.schedule().channels(); ++channel) {
    text += "channel " + std::to_string(channel) + ": lane " + std::to_string(plan.lane(channel)) +
            ", stream " + std::to_string(plan.stream(channel)) + ", ranks";
    for (int i = 0; i < plan.schedule().layout().collective.participants; ++i) {
      text += " " + std::to_string(plan.rank(i, channel));
    }
    text += "\n";
  }
  return text + to_string(plan.schedule());
}

}  // namespace ciranda
