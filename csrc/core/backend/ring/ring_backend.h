#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/backend/backend.h"
#include "core/backend/ring/ring_exchange.h"
#include "core/backend/ring/ring_operation.h"
#include "core/plan/hierarchical.h"
#include "core/transport/join/remote_mesh.h"
#include "core/transport/local/control_block.h"
#include "core/transport/local/peer_bells.h"

namespace ciranda {

struct RingOptions {
  LinkSpeed link = {};
  Grain grain = {};
  int streams_max = 1;        // that a request gets, if it says how many; equal on every rank
  bool authenticates = true;  // payload; not where TLS does it or the network is trusted
  // Of an allreduce or a broadcast of private memory, staged at a time; a multiple of 64. As much
  // as is fused by default: the pause between two rounds costs nothing next to a round.
  std::uint64_t stage_bytes_max = std::uint64_t{64} << 20;
};

// Memory that all ranks of the host see; SegmentTable's.
struct HostMemory {
  struct Stage {
    ArenaRef ref;
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    std::shared_ptr<void> lease = {};
  };
  std::function<Result<Stage>(std::uint64_t bytes)> allocate;
  // Memory of the rank with local rank `owner`; null until its announcement has arrived.
  std::function<Result<std::byte*>(int owner, const ArenaRef& ref, std::uint64_t bytes)> resolve;
};

// Collectives between hosts over TCP, by the schedules of core/plan.
//
// Data in the arena is reduced inside the host first: each rank that drives a lane sums the local
// ranks' copies of its stripes, exchanges them with the same lane of the other hosts, and writes
// what is final into every local copy. Private memory of an allreduce or a broadcast is copied to a
// stage, which all ranks of the host see, and treated alike; a large one goes in several rounds.
// The others, and all where each host has one rank, go directly from rank to rank.
//
// With a wire dtype the sums are float32 and every message is rounded as it leaves, a segment at a
// time. So is the final value by the rank that completes it, and all ranks have the same bits.
//
// The operations of all groups run one after the other, on every rank in the agreed order, so that
// none waits in a ring for another; within one, each channel goes as fast as its sockets let it.
class RingBackend final : public Backend {
 public:
  // `mesh` outlives the backend, which alone uses its data links.
  RingBackend(RemoteMesh& mesh, ControlBlock control, PeerBells bells, int local_rank,
              HostMemory memory, RingOptions options);

  // The group is removed; its operations go on.
  void forget(GroupId group) { members_.erase(group); }

  bool supports(const FusedOp& op) const override { return op.kind != OpKind::kBarrier; }
  void start(Execution&& execution) override;
  bool advance() override;
  bool idle() const override { return operations_.empty(); }
  void blocked_on(std::vector<Rank>& out) const override;
  void abort(const Error& why) override;
  const Error* broken() const override { return broken_ ? &*broken_ : nullptr; }

  // Appends what advance() waits for.
  void watched(std::vector<Watched>& out) const;

 private:
  const std::shared_ptr<const RingMembers>& members_of(const Group& group);
  void add(Execution execution, const std::shared_ptr<const RingMembers>& members,
           std::uint64_t number, bool staged);
  // The private data of the members here where all of them see it. True when something moved.
  bool advance_stage(RingOperation& op);
  bool fill_stage(const RingOperation& op);
  // True when something moved; what fails sets broken_.
  bool advance_channels(RingOperation& op);
  bool take_links();
  // The channels of the operation are through: this rank's, those of all members here.
  bool has_crossed(const RingOperation& op) const { return crossed_ >= op.number(); }
  bool all_crossed(const RingOperation& op) const;
  void finish_front();
  bool fail(Error why);  // true: something happened

  RemoteMesh& mesh_;
  const ControlBlock control_;
  const PeerBells bells_;
  const int local_rank_;
  const HostMemory memory_;
  const RingOptions options_;
  std::map<GroupId, std::shared_ptr<const RingMembers>> members_;
  HostMemory::Stage stage_;
  std::uint64_t crossed_ = 0;  // number of the latest operation that is through on this rank
  RingExchange exchange_;
  std::deque<RingOperation> operations_;
  std::optional<Error> broken_;
};

}  // namespace ciranda
