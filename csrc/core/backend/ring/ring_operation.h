#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/backend/backend.h"
#include "core/plan/hierarchical.h"
#include "core/wire/sealed.h"

namespace ciranda {

// This rank's progress on one channel of an operation.
struct RingChannel {
  int index = 0;
  std::uint32_t sends = 0, receives = 0, chunks = 0;  // done so far
  SealedDataHeader header_out = {};
  std::uint64_t sent_bytes = 0;  // of header and payload; the header is sealed if > 0 or wants_room
  bool wants_room = false;
  SealedDataHeader header_in = {};
  std::uint64_t received_bytes = 0;  // of header and payload
  std::vector<std::byte> arrived;    // a message that must be reduced or widened
  std::vector<std::byte> rounded;    // a message to send, with a wire dtype
  std::vector<std::byte> scratch;
};

// A group from the view of this rank, which is a member.
struct RingMembers {
  // `local_ranks`: the World's ranks on this host, by local rank.
  RingMembers(const Group& group, Rank self, const std::vector<Rank>& local_ranks);

  std::vector<Rank> ranks;  // in the World, by index in the group
  Hosts hosts;              // indices in the group, by host; hosts without members are left out
  Hosts flat;               // a host for each index
  std::vector<int> here;    // indices of the members on this host
  std::vector<int> locals;  // local ranks of the members in `here`
  int self = 0;             // this rank's index in the group
  int place = 0;            // this rank's index in `here`

  int size() const { return static_cast<int>(ranks.size()); }
};

// One operation between hosts on this rank: its plan, the places of its data, and the computation
// of its steps. It knows no connection.
class RingOperation {
 public:
  // `staged`: the data goes through memory that all ranks of the host see; take_stages() says
  // where.
  RingOperation(Execution execution, HierarchicalPlan plan,
                std::shared_ptr<const RingMembers> members, std::uint64_t number, bool staged);

  const FusedOp& op() const { return execution_.op; }
  const RingMembers& members() const { return *members_; }
  std::uint64_t private_bytes() const { return bytes_of(execution_.buffers); }
  const HierarchicalPlan& plan() const { return plan_; }
  const Schedule& schedule() const { return plan_.schedule(); }
  std::uint64_t number() const { return number_; }
  std::vector<RingChannel>& channels() { return channels_; }  // the channels that this rank drives
  const std::vector<RingChannel>& channels() const { return channels_; }

  // Finds the data, unless it is staged. Copies it if members must lie side by side or be scaled.
  void take_data();
  // Copies this rank's data to its stage.
  void copy_to_stage(std::byte* stage) const;
  bool waits_for_stages() const { return staged_ && copies_.empty(); }
  // Takes the filled stages of the members on this host, by place. A broadcast reads the stage at
  // place `root`.
  void take_stages(std::vector<std::byte*> stages, int root);
  // Returns true if other members on the host read this rank's memory or write to it.
  bool is_shared() const { return !copies_.empty(); }

  // Returns true if all of this rank's channels are done.
  bool is_through() const;
  // Copies the result to the user's memory. The operation must not be used any more.
  Done finish();
  void fail(const Error& why) { execution_.done(why, nullptr); }

  // Sums the host's copies, chunk by chunk, until `count` chunks are made.
  void make_chunks(RingChannel& channel, std::uint32_t count);
  // Returns the bytes to send for `piece`. With a wire dtype they are rounded when the message
  // `begins`.
  std::byte* payload(RingChannel& channel, const Piece& piece, bool begins);
  // Returns where to receive a message: at its place if nothing more has to be done with it.
  std::byte* landing(RingChannel& channel, const Receive& receive);
  // Applies the received bytes at `from` as the step says.
  void apply(RingChannel& channel, const Step& step, const std::byte* from);
  std::byte* place(RingChannel& channel, const Piece& piece);

 private:
  void gather();
  // Like apply(), but `from` has the wire dtype.
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
  std::vector<std::byte*> copies_;   // in arena or stage: outputs of the members here, by place
  std::vector<std::byte> gathered_;  // members side by side, or a scaled copy
  std::vector<RingChannel> channels_;
};

}  // namespace ciranda
