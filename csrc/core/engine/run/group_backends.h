#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "core/engine/peer_watch.h"
#include "core/engine/rank_context.h"
#include "core/engine/run/backends.h"
#include "core/negotiate/group.h"
#include "core/negotiate/response.h"

namespace ciranda {

// Where the operations of each group run that this rank is a member of: the World's from the start,
// another one's from its agreement until it is removed and its last operation is done. Between
// hosts one ring runs those of all groups.
//
// One thread at a time, as for a Backend.
class GroupBackends {
 public:
  // `make` gives what a group's backends are made of beside their memory. All outlive it.
  using MakeContext = std::function<BackendContext(const Group& group)>;
  GroupBackends(RankContext& rank, PeerWatch& peers, std::unique_ptr<RingBackend> ring,
                MakeContext make);

  // The group exists from here on. `response` is that of its kAddGroup; `lease` keeps its region
  // where this rank has allocated it. Nothing to do for who is no member.
  Status add(const Response& response, std::shared_ptr<void> lease);
  void remove(GroupId id);

  // A pair exists from its first operation on, which is agreed.
  Status add_pair(const Response& response);

  // Memory for the group of those ranks on this host, if this rank is the one that provides it: its
  // first member there. Thread-safe.
  static Result<ArenaBuffer> provide_region(RankContext& rank, const std::vector<Rank>& members);
  // The same for a pair, kept for the World's life. Contributions of this rank to its operations
  // name it.
  static Result<ArenaRef> provide_region_of_pair(RankContext& rank, GroupId pair);

  void start(Execution&& execution);
  bool advance();
  // As Backends', of all groups.
  bool idle() const;
  bool resting() const;
  bool will_wake() const;
  const Error* broken() const;
  std::uint64_t look_again_ns() const;
  void blocked_on(std::vector<Rank>& out) const;
  void abort(const Error& why);
  // Appends what the ring waits for.
  void watched(std::vector<Watched>& out) const {
    if (ring_) ring_->watched(out);
  }
  void abandon() noexcept;

 private:
  struct Other {
    Backends backends;
    std::shared_ptr<void> lease;  // of its region
    bool removed = false;
    bool works = false;  // it is among working_
  };
  // Those of which something may be said in a turn: a World may have many groups.
  template <typename Fn>
  void each(Fn fn) const {
    if (ring_) fn(*ring_);
    fn(world_);
    for (const Other* other : working_) fn(other->backends);
  }
  // `response` has the contribution of who provides its region.
  Status add_member_of(const std::shared_ptr<const Group>& group, const Response& response,
                       std::shared_ptr<void> lease);
  void drop_removed();

  RankContext& rank_;
  PeerWatch& peers_;
  MakeContext make_;
  std::unique_ptr<RingBackend> ring_;  // several hosts
  Backends world_;
  std::map<GroupId, std::unique_ptr<Other>> others_;
  std::vector<Other*> working_;  // the others that do not rest, or are broken
};

}  // namespace ciranda
