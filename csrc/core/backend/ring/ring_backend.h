#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
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
};

// Collectives between hosts over TCP, by the schedules of core/plan.
//
// Data in the arena is reduced inside the host first: each rank that drives a lane sums the local
// ranks' copies of its stripes, exchanges them with the same lane of the other hosts, and writes
// what is final into every local copy. Private memory goes directly from rank to rank.
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
              RingOptions options);

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
    std::vector<std::byte> gathered;  // members side by side, or a scaled copy
    std::vector<Channel> channels;    // those that this rank drives
    bool crossed = false;             // all of them are through
  };

  bool advance_operation(Operation& op);
  // True when something moved; a broken connection sets broken_.
  bool send(Operation& op, Channel& channel);
  bool receive(Operation& op, Channel& channel);
  bool read_message(Operation& op, Channel& channel, const Receive& receive, bool& complete);
  bool may_send(Operation& op, Channel& channel, const Send& send);
  void make_chunks(Operation& op, Channel& channel, std::uint32_t count);
  void apply(Operation& op, Channel& channel, const Step& step, const std::byte* from);
  // Where a message is received: its place, if no more is to be done with it.
  std::byte* landing(Operation& op, Channel& channel, const Receive& receive) const;
  std::byte* place(Operation& op, Channel& channel, const Piece& piece) const;
  bool all_crossed(const Operation& op) const;
  void finish_front();
  int socket(const Operation& op, const Channel& channel, int participant) const;
  DataLink& link(const Operation& op, const Channel& channel, int participant);
  void break_off(const DataLink& link, Error why);
  double postscale(const Operation& op) const;
  std::size_t locals() const { return mesh_.local_ranks().size(); }

  RemoteMesh& mesh_;
  const ControlBlock control_;
  const PeerBells bells_;
  const int local_rank_;
  const RingOptions options_;
  const Hosts flat_;
  std::uint64_t started_ = 0;
  std::deque<Operation> operations_;
  std::optional<Error> broken_;
};

}  // namespace ciranda
