#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/backend/backend.h"
#include "core/plan/hierarchical.h"
#include "core/transport/control_block.h"
#include "core/transport/peer_bells.h"
#include "core/transport/remote_mesh.h"

namespace ciranda {

struct RingOptions {
  Link link = {};
  Grain grain = {};
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
// Operations run one after the other, on every rank in the same order; within one, each channel
// goes as fast as its sockets let it.
class RingBackend final : public Backend {
 public:
  // `mesh` outlives the backend, which alone uses its data links.
  RingBackend(RemoteMesh& mesh, ControlBlock control, PeerBells bells, int local_rank,
              HostMemory memory, RingOptions options);

  bool supports(const FusedOp& op) const override { return op.kind != OpKind::kBarrier; }
  void start(Execution execution) override;
  bool advance() override;
  bool idle() const override { return operations_.empty(); }
  void blocked_on(std::vector<Rank>& out) const override;
  void abort(const Error& why) override;
  const Error* broken() const override { return broken_ ? &*broken_ : nullptr; }

  // Appends what advance() waits for.
  void watched(std::vector<Watched>& out) const;

 private:
  struct Channel {
    int index = 0;
    std::uint32_t sends = 0, receives = 0, chunks = 0;  // done
    SealedDataHeader header_out = {};
    std::uint64_t sent_bytes = 0;  // of header and payload; 0: the header is not sealed yet
    bool wants_room = false;
    SealedDataHeader header_in = {};
    std::uint64_t received_bytes = 0;  // of header and payload
    std::vector<std::byte> arrived;    // what is to be reduced, or widened
    std::vector<std::byte> rounded;    // what is sent, with a wire dtype
    std::vector<std::byte> scratch;
  };
  struct Operation {
    Operation(Execution what, HierarchicalPlan how)
        : execution(std::move(what)), plan(std::move(how)) {}
    Execution execution;
    HierarchicalPlan plan;
    std::uint64_t number = 0;
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
    std::vector<std::byte*> copies;  // in arena or stage: the local ranks' outputs, by local rank
    bool staged = false;  // goes through stages; `copies` is empty until all of them are filled
    std::vector<std::byte> gathered;  // members side by side, or a scaled copy
    std::vector<Channel> channels;    // those that this rank drives
    bool crossed = false;             // all of them are through
  };

  void add(Execution execution, bool staged);
  void gather(Operation& op);
  // The private data of all local ranks where all of them see it. True when something moved.
  bool advance_stage(Operation& op);
  bool fill_stage(const Operation& op);
  bool waits_for_stages(const Operation& op) const { return op.staged && op.copies.empty(); }
  bool advance_operation(Operation& op);
  // True when something moved; a broken connection sets broken_.
  bool send(Operation& op, Channel& channel);
  bool receive(Operation& op, Channel& channel);
  bool read_message(Operation& op, Channel& channel, const Receive& receive, bool& complete);
  bool may_send(Operation& op, Channel& channel, const Send& send);
  void make_chunks(Operation& op, Channel& channel, std::uint32_t count);
  void apply(Operation& op, Channel& channel, const Step& step, const std::byte* from);
  // The same with a wire dtype, which `from` has.
  void widen(Operation& op, Channel& channel, const Step& step, const std::byte* from,
             std::span<std::byte* const> outputs);
  // Where a message is received: its place, if no more is to be done with it.
  std::byte* landing(Operation& op, Channel& channel, const Receive& receive) const;
  std::byte* place(Operation& op, Channel& channel, const Piece& piece) const;
  bool all_crossed(const Operation& op) const;
  void finish_front();
  // Asks for the links that the operation needs, so that they are made at the same time.
  void call_peers(const Operation& op);
  DataLink* link(const Operation& op, const Channel& channel, int participant) const;
  bool take_links();
  void break_off(const DataLink& link, Error why);
  double postscale(const Operation& op) const;
  std::size_t locals() const { return mesh_.local_ranks().size(); }

  RemoteMesh& mesh_;
  const ControlBlock control_;
  const PeerBells bells_;
  const int local_rank_;
  const HostMemory memory_;
  const RingOptions options_;
  const Hosts flat_;
  HostMemory::Stage stage_;
  std::uint64_t started_ = 0;
  std::deque<Operation> operations_;
  std::optional<Error> broken_;
};

}  // namespace ciranda
