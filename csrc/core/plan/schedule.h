#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/wire/op_kind.h"
#include "core/wire/types.h"

namespace ciranda {

// A collective between participants (hosts, or ranks without hosts) as data: what each of them
// sends to whom, receives from whom, does with it, and what has to happen before. Pure: everybody
// computes it from what was agreed, no clock and no order of arrival enters, so that the same bits
// come out on every participant and in every run. Thread-safe; a step costs no allocation.
//
// Channels are independent: one may run ahead of another, and each has scratch of its own. All
// messages between two participants on a channel travel in the order of the steps, in each
// direction; an executor gives each channel sockets of its own.
//
// Within a channel the sends happen in the order of the steps and so do the receives, each side as
// fast as it can: what it waits for stands in the step, as how many steps' sends, receives or
// chunks must be done. A side without bytes is no message and is done when its turn comes.
//
// Nothing gets stuck, however little a connection holds, if a channel goes on receiving while it
// sends. A receive that reduces needs up to `segment_bytes` of room until it may be applied.

enum class Space : std::uint8_t {
  kInput,   // the participant's own contribution, never written
  kOutput,  // its result; for allreduce and broadcast it may be the same memory as the input
  kScratch,
};

// All bytes of the payload; a message may have fewer (Collective::narrowing). Each piece begins on
// an element: blocks are cut in units of 64 bytes.
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};
struct Piece {
  Space space = Space::kInput;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

inline constexpr int kNobody = -1;

struct Send {
  int to = kNobody;  // oneself: no message, the step's receive copies the piece
  Piece piece = {};
  std::uint32_t after_receives = 0;  // begins when so many receives are applied
  std::uint32_t after_chunks = 0;    // and so many chunks of the input are there
};

enum class Apply : std::uint8_t { kCopy, kReduceOwnFirst, kReduceReceivedFirst };

struct Receive {
  int from = kNobody;
  Piece piece = {};  // where the result of applying goes
  Apply apply = Apply::kCopy;
  Piece own = {};          // kReduce…: the other operand, as long as the piece
  bool completes = false;  // the reduction of these bytes ends here: the postscale is applied
  std::uint32_t after_sends = 0;   // is applied when so many sends have left
  std::uint32_t after_chunks = 0;  // and so many chunks of the input are there
};

struct Step {
  Send send = {};
  Receive receive = {};
};

// Whether both ends of the step reduce the same two operands, each one's own and the other's: where
// messages are rounded, each has to round its own too.
bool exchanges(const Step& step);

// What is to be done; the same on every participant.
struct Collective {
  OpKind kind = OpKind::kAllreduce;
  int participants = 1;
  int root = kNobody;                       // broadcast
  std::uint64_t payload_bytes = 0;          // allreduce, broadcast
  std::vector<std::uint64_t> offsets = {};  // the others: as StagedShape::offsets, on elements
  // Messages have 1/narrowing of the bytes of their pieces: 2 where float32 travels in 16 bits.
  std::uint64_t narrowing = 1;
};

// Few half round trips, or few bytes: see short_messages.h and ring.h.
enum class Algorithm : std::uint8_t { kShort, kRing };

// How finely blocks are cut. A block is striped over the channels, a stripe is cut into segments,
// so that one is reduced while the next is on its way.
struct Grain {
  int channels = 1;                        // at most
  std::uint64_t stripe_bytes_min = 65536;  // fewer channels, if a block's stripes were shorter
  std::uint64_t segment_bytes = 131072;    // at most, at least 64; longer in 65536 of them
};

// Where in its rounds the step of an index stands. A round has a step for each segment.
struct Turn {
  std::uint32_t index = 0;
  int round = 0;
  std::uint32_t segment = 0;
  std::uint32_t round_ago = 0;  // the same segment one round before, as a count: its index + 1
};

// The cut, of which ring.h and short_messages.h make steps.
struct Layout {
  Collective collective;
  int self = 0;
  int channels = 1;
  std::uint32_t segments = 1;                // of a stripe
  std::uint64_t segment_bytes = 0;           // of the longest segment
  std::vector<std::uint64_t> received = {};  // alltoall: where each sender's part begins

  // What participant `index` is the owner of: a share of the payload, or its part.
  Range block(int index) const;
  Range whole() const { return {0, collective.payload_bytes}; }
  Range stripe(Range block, int channel) const;
  Range segment(Range block, int channel, std::uint32_t index) const;
  Turn turn(std::uint32_t index) const;
};

// How far an algorithm goes.
struct Extent {
  std::uint32_t rounds = 0;
  std::uint32_t chunks = 0;  // in rounds' worth of segments
  std::uint64_t scratch_bytes = 0;
};

class Schedule {
 public:
  // Reducescatter has no short form; alltoall and barrier have no other.
  Schedule(Collective collective, int self, Algorithm algorithm, Grain grain = {});

  int channels() const { return layout_.channels; }
  std::uint32_t steps() const { return steps_; }  // of each channel
  Step step(int channel, std::uint32_t index) const;
  // Where a reduction's input is made piece by piece (see hierarchical.h): the pieces in the order
  // in which the steps read them. None: the input must be there before the first step.
  std::uint32_t chunks() const { return chunks_; }  // of each channel
  Piece chunk(int channel, std::uint32_t index) const;
  std::uint64_t scratch_bytes() const { return scratch_bytes_; }  // of each channel
  std::uint64_t message_bytes(const Piece& piece) const {
    return piece.bytes / layout_.collective.narrowing;
  }
  Algorithm algorithm() const { return algorithm_; }
  const Layout& layout() const { return layout_; }

 private:
  Layout layout_;
  Algorithm algorithm_;
  std::uint32_t steps_ = 0;
  std::uint32_t chunks_ = 0;
  std::uint64_t scratch_bytes_ = 0;
};

// A table for people, a line a step.
std::string to_string(const Schedule& schedule);

}  // namespace ciranda
