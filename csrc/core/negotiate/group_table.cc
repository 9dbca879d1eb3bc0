#include "core/negotiate/group_table.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/assert.h"
#include "core/wire/pair.h"

namespace ciranda {
namespace {

std::vector<Rank> first_ranks(int size) {
  std::vector<Rank> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

auto place_of(const std::vector<std::shared_ptr<const Group>>& groups, GroupId id) {
  return std::lower_bound(groups.begin(), groups.end(), id,
                          [](const auto& group, GroupId other) { return group->id < other; });
}

std::shared_ptr<const Group> make_group(GroupId id, const std::vector<Rank>& ranks,
                                        const Hosts& hosts) {
  auto group = std::make_shared<Group>();
  group->id = id;
  group->ranks = ranks;
  for (const std::vector<Rank>& host : hosts) {
    std::vector<Rank>& members = group->hosts.emplace_back();
    std::copy_if(host.begin(), host.end(), std::back_inserter(members),
                 [&](Rank rank) { return group->contains(rank); });
  }
  return group;
}

}  // namespace

GroupTable::GroupTable(int size, Hosts hosts)
    : hosts_(hosts.empty() ? Hosts{first_ranks(size)} : std::move(hosts)) {
  CIRANDA_ASSERT(size >= 1 && size <= kRanksMax);
  groups_.push_back(make_group(kWorldGroup, first_ranks(size), hosts_));
}

std::shared_ptr<const Group> GroupTable::find(GroupId id) const {
  const auto at = place_of(groups_, id);
  return at != groups_.end() && (*at)->id == id ? *at : nullptr;
}

std::shared_ptr<const Group> GroupTable::find_or_pair(GroupId id) {
  if (!is_pair(id)) return find(id);
  const Pair pair = pair_of(id);
  if (!is_in_world(pair, world()->size())) return nullptr;
  std::shared_ptr<const Group>& group = pairs_[id];
  if (group == nullptr) {
    group = make_group(id, {std::min(pair.from, pair.to), std::max(pair.from, pair.to)}, hosts_);
  }
  return group;
}

std::shared_ptr<const Group> GroupTable::of_ranks(const std::vector<Rank>& ranks) const {
  const auto at = std::find_if(groups_.begin(), groups_.end(),
                               [&](const auto& group) { return group->ranks == ranks; });
  return at != groups_.end() ? *at : nullptr;
}

bool GroupTable::full() const {
  return groups_.size() > kGroupsMax || next_id_ == kFirstPair;
}

std::shared_ptr<const Group> GroupTable::add(const std::vector<Rank>& ranks) {
  CIRANDA_ASSERT(!full() && of_ranks(ranks) == nullptr);  // I19
  CIRANDA_ASSERT(!ranks.empty() && ranks.front() >= 0 && ranks.back() < world()->size());
  CIRANDA_ASSERT(std::is_sorted(ranks.begin(), ranks.end()));
  groups_.push_back(make_group(next_id_++, ranks, hosts_));
  return groups_.back();
}

void GroupTable::remove(GroupId id) {
  const auto at = place_of(groups_, id);
  CIRANDA_ASSERT(id != kWorldGroup && at != groups_.end() && (*at)->id == id);
  groups_.erase(at);
}

}  // namespace ciranda
