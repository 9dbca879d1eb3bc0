#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/backend/backend.h"
#include "core/plan/hierarchical.h"
#include "core/wire/sealed.h"

namespace ciranda {

// How far this rank is with one channel of an operation.
struct RingChannel {
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

// A group as seen by this rank, which is one of its members.
struct RingMembers {
  // `local_ranks`: the World's ranks on this host, by local rank.
  RingMembers(const Group& group, Rank self, const std::vector<Rank>& local_ranks);

  std::vector<Rank> ranks;  // in the World, by index in the group
  Hosts hosts;              // indices in the group, by host that has any
  Hosts flat;               // each index a host of its own
  std::vector<int> here;    // indices of those on this host
  std::vector<int> locals;  // their local ranks
  int self = 0;             // this rank's index in the group
  int place = 0;            // and in `here`

  int size() const { return static_cast<int>(ranks.size()); }
};

// One operation between hosts on this rank: its plan, where its data lies, and what its steps
// compute. It knows no connection.
class RingOperation {
 public:
  // `staged`: through memory that all ranks of the host see, which is told by take_stages().
  RingOperation(Execution execution, HierarchicalPlan plan,
                std::shared_ptr<const RingMembers> members, std::uint64_t number, bool staged);

  const FusedOp& op() const { return execution_.op; }
  const RingMembers& members() const { return *members_; }
  std::uint64_t private_bytes() const { return bytes_of(execution_.buffers); }
  const HierarchicalPlan& plan() const { return plan_; }
  const Schedule& schedule() const { return plan_.schedule(); }
  std::uint64_t number() const { return number_; }
  std::vector<RingChannel>& channels() { return channels_; }  // those that this rank drives
  const std::vector<RingChannel>& channels() const { return channels_; }

  // Finds the data, unless it is staged; a pass over it where members have to lie side by side, or
  // are scaled.
  void take_data();
  // This rank's data, for its stage.
  void copy_to_stage(std::byte* stage) const;
  bool waits_for_stages() const { return staged_ && copies_.empty(); }
  // The stages of all members here, filled; that of the one at place `root` is a broadcast's input.
  void take_stages(std::vector<std::byte*> stages, int root);
  // Other members on the host read this rank's memory, or write to it.
  bool is_shared() const { return !copies_.empty(); }

  // This rank's channels are all through.
  bool is_through() const;
  // Puts the result where the user wants it. Then the operation is of no use any more.
  Done finish();
  void fail(const Error& why) { execution_.done(why, nullptr); }

  // The host's sum, piece by piece, until `count` chunks are there.
  void make_chunks(RingChannel& channel, std::uint32_t count);
  // What is sent of `piece`; rounded first, with a wire dtype, when the message `begins`.
  std::byte* payload(RingChannel& channel, const Piece& piece, bool begins);
  // Where a message is received: its place, if no more is to be done with it.
  std::byte* landing(RingChannel& channel, const Receive& receive);
  // Does with the bytes at `from` what the step says.
  void apply(RingChannel& channel, const Step& step, const std::byte* from);
  std::byte* place(RingChannel& channel, const Piece& piece);

 private:
  void gather();
  // apply() with a wire dtype, which `from` has.
  void widen(RingChannel& channel, const Step& step, const std::byte* from,
             std::span<std::byte* const> outputs);
  double postscale() const;

  Execution execution_;
  const std::shared_ptr<const RingMembers> members_;  // before the plan, which refers to it
  const HierarchicalPlan plan_;
  const std::uint64_t number_;
  const bool staged_;
  const std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  std::vector<std::byte*> copies_;   // in arena or stage: the outputs of the members here, by place
  std::vector<std::byte> gathered_;  // members side by side, or a scaled copy
  std::vector<RingChannel> channels_;
};

}  // namespace ciranda
