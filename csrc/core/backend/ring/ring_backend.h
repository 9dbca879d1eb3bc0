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
  int streams_max = 1;        // limit for a request that says how many; equal on every rank
  bool authenticates = true;  // the payload too; false with TLS or on a trusted network
  // Bytes of private memory that an allreduce or a broadcast stages at a time; a multiple of 64.
  // The default is the default limit of fusion: the pause between two rounds costs nothing next to
  // a round.
  std::uint64_t stage_bytes_max = std::uint64_t{64} << 20;
};

// Access to memory that all ranks of the host see, provided by SegmentTable.
struct HostMemory {
  struct Stage {
    ArenaRef ref;
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    std::shared_ptr<void> lease = {};
  };
  std::function<Result<Stage>(std::uint64_t bytes)> allocate;
  // Returns memory of the rank with local rank `owner`; null until its announcement has arrived.
  std::function<Result<std::byte*>(int owner, const ArenaRef& ref, std::uint64_t bytes)> resolve;
};

// Runs collectives between hosts over TCP, by the schedules of core/plan.
//
// Data in the arena is reduced inside the host first. Each rank that drives a lane sums the local
// ranks' copies of its stripes, exchanges the sums with the same lane of the other hosts, and
// writes final values into every local copy. Private memory of an allreduce or a broadcast is
// copied to a stage, which all ranks of the host see, and is then treated in the same way; a large
// operation takes several rounds. All other private data goes directly from rank to rank. So does
// everything if each host has one rank.
//
// With a wire dtype the sums are float32, and every message is rounded when it leaves, one segment
// at a time. The rank that completes a final value rounds it too, so that all ranks have the same
// bits.
//
// Operations of different groups also run one after the other, in the agreed order on every rank,
// so that they cannot wait for each other in a circle. Within an operation, each channel goes as
// fast as its sockets allow.
class RingBackend final : public Backend {
 public:
  // `mesh` outlives the backend. No other object uses its data links.
  RingBackend(RemoteMesh& mesh, ControlBlock control, PeerBells bells, int local_rank,
              HostMemory memory, RingOptions options);

  // Forgets a removed group. Its started operations continue.
  void forget(GroupId group) { members_.erase(group); }

  bool supports(const FusedOp& op) const override { return op.kind != OpKind::kBarrier; }
  void start(Execution&& execution) override;
  bool advance() override;
  bool idle() const override { return operations_.empty(); }
  void blocked_on(std::vector<Rank>& out) const override;
  void abort(const Error& why) override;
  const Error* broken() const override { return broken_ ? &*broken_ : nullptr; }

  // Appends the sockets that advance() waits for.
  void watched(std::vector<Watched>& out) const;

 private:
  const std::shared_ptr<const RingMembers>& members_of(const Group& group);
  void add(Execution execution, const std::shared_ptr<const RingMembers>& members,
           std::uint64_t number, bool staged);
  // Puts this rank's private data into its stage and finds the stages of the other members on this
  // host. Returns true if anything moved.
  bool advance_stage(RingOperation& op);
  bool fill_stage(const RingOperation& op);
  // Returns true if anything moved. A failure sets broken_.
  bool advance_channels(RingOperation& op);
  bool take_links();
  // Return true if the operation's channels are done: those of this rank, or of every member on
  // this host.
  bool has_crossed(const RingOperation& op) const { return crossed_ >= op.number(); }
  bool all_crossed(const RingOperation& op) const;
  void finish_front();
  bool fail(Error why);  // returns true: something happened

  RemoteMesh& mesh_;
  const ControlBlock control_;
  const PeerBells bells_;
  const int local_rank_;
  const HostMemory memory_;
  const RingOptions options_;
  std::map<GroupId, std::shared_ptr<const RingMembers>> members_;
  HostMemory::Stage stage_;
  std::uint64_t crossed_ = 0;  // number of the latest operation done on this rank
  RingExchange exchange_;
  std::deque<RingOperation> operations_;
  std::optional<Error> broken_;
};

}  // namespace ciranda
