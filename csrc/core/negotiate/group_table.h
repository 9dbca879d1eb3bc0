#pragma once

#include <map>
#include <memory>
#include <vector>

#include "core/negotiate/group.h"

namespace ciranda {

// The groups that exist. Every rank holds the same ones, because only the agreed order changes
// them. Numbers rise and are never reused, so a number that was in flight while its group was
// removed cannot mean another group (I19).
class GroupTable {
 public:
  // The World has the ranks 0 to size - 1. `hosts` has the ranks of each host; empty: all ranks are
  // on one host.
  GroupTable(int size, Hosts hosts);

  const std::shared_ptr<const Group>& world() const { return groups_.front(); }
  // Returns nullptr if no group has that number, or if it is a pair's. O(log groups).
  std::shared_ptr<const Group> find(GroupId id) const;
  // Finds a pair (wire/pair.h) too and makes its group on the first call. Returns nullptr if there
  // is no such group or pair.
  std::shared_ptr<const Group> find_or_pair(GroupId id);
  // Returns the group with exactly these ranks, or nullptr. Pairs do not count.
  std::shared_ptr<const Group> of_ranks(const std::vector<Rank>& ranks) const;
  // Returns true if kGroupsMax groups exist besides the World, or the numbers are used up.
  bool full() const;

  // Asserts that `ranks` ascend, are ranks of the World, that no other group has exactly them, and
  // that the table is not full().
  std::shared_ptr<const Group> add(const std::vector<Rank>& ranks);
  // Asserts that the group exists and is not the World.
  void remove(GroupId id);

 private:
  const Hosts hosts_;
  std::vector<std::shared_ptr<const Group>> groups_;  // by number; the World is the first
  GroupId next_id_ = kWorldGroup + 1;                 // kFirstPair: no number is left
  std::map<GroupId, std::shared_ptr<const Group>> pairs_;
};

}  // namespace ciranda
