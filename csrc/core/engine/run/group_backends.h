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

// The backends of each group that this rank is a member of. The World's backends exist from the
// start. Another group's exist from its agreement until it is removed and its last operation is
// done. One ring runs the operations of every group between hosts.
//
// One thread at a time, as for a Backend.
class GroupBackends {
 public:
  // `make` returns the context from which the backends of a group are made. All arguments must
  // outlive this object.
  using MakeContext = std::function<BackendContext(const Group& group)>;
  GroupBackends(RankContext& rank, PeerWatch& peers, std::unique_ptr<RingBackend> ring,
                MakeContext make);

  // Makes the backends of a new group. `response`: that of its kAddGroup. `lease`: keeps the region
  // alive if this rank has allocated it. Does nothing if this rank is not a member.
  Status add(const Response& response, std::shared_ptr<void> lease);
  void remove(GroupId id);

  // Makes the backends of a pair (wire/pair.h), when its first operation has been agreed.
  Status add_pair(const Response& response);

  // Allocates memory for the group's members on this host if this rank provides it, as the first of
  // them; otherwise returns an empty buffer. `members` ascend. Thread-safe.
  static Result<ArenaBuffer> provide_region(RankContext& rank, const std::vector<Rank>& members);
  // The same for a pair, kept until the World ends. This rank's contributions to the pair's
  // operations must carry the returned reference.
  static Result<ArenaRef> provide_region_of_pair(RankContext& rank, GroupId pair);

  void start(Execution&& execution);
  bool advance();
  // See Backends; these cover all groups.
  DriverNeeds needs() const;
  const Error* broken() const;
  void blocked_on(std::vector<Rank>& out) const;
  void abort(const Error& why);
  // Appends the sockets that the ring waits for.
  void watched(std::vector<Watched>& out) const {
    if (ring_) ring_->watched(out);
  }
  void abandon() noexcept;

 private:
  struct Other {
    Backends backends;
    std::shared_ptr<void> lease;  // keeps the region alive
    bool removed = false;
    bool works = false;  // it is in working_
  };
  // Calls `fn` only for backends that may have something to report: a World may have many groups.
  template <typename Fn>
  void each(Fn fn) const {
    if (ring_) fn(*ring_);
    fn(world_);
    for (const Other* other : working_) fn(other->backends);
  }
  // `response` has the contribution of the rank that provides the region.
  Status add_member_of(const std::shared_ptr<const Group>& group, const Response& response,
                       std::shared_ptr<void> lease);
  void drop_removed();

  RankContext& rank_;
  PeerWatch& peers_;
  MakeContext make_;
  std::unique_ptr<RingBackend> ring_;  // null on one host
  Backends world_;
  std::map<GroupId, std::unique_ptr<Other>> others_;
  std::vector<Other*> working_;  // those that do not rest, or are broken
};

}  // namespace ciranda
