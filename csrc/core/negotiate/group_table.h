#pragma once

#include <map>
#include <memory>
#include <vector>

#include "core/negotiate/group.h"

namespace ciranda {

// The groups that exist. Every rank holds the same ones, because only the agreed order changes
// them. Numbers rise and are never used twice, so that one which was on its way while its group was
// removed cannot mean another.
class GroupTable {
 public:
  // The World's ranks, 0 to size - 1, and on which host each is. No hosts: all are on one.
  GroupTable(int size, Hosts hosts);

  const std::shared_ptr<const Group>& world() const { return groups_.front(); }
  // nullptr if there is none, or it is a pair. O(log groups).
  std::shared_ptr<const Group> find(GroupId id) const;
  // Also of a pair (wire/pair.h), which is there from the first time on that it is asked for.
  std::shared_ptr<const Group> find_or_pair(GroupId id);
  // The one with exactly these ranks; nullptr if there is none.
  std::shared_ptr<const Group> of_ranks(const std::vector<Rank>& ranks) const;
  // kGroupsMax exist besides the World, or the numbers are used up.
  bool full() const;

  // `ranks` ascend, are ranks of the World and no other group's. Not while full().
  std::shared_ptr<const Group> add(const std::vector<Rank>& ranks);
  // Of a group that exists, and is not the World.
  void remove(GroupId id);

 private:
  const Hosts hosts_;
  std::vector<std::shared_ptr<const Group>> groups_;  // by number; the World is the first
  GroupId next_id_ = kWorldGroup + 1;                 // kFirstPair: all were handed out
  std::map<GroupId, std::shared_ptr<const Group>> pairs_;
};

}  // namespace ciranda
