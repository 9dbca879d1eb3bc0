#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/wire/op_kind.h"
#include "core/wire/types.h"

namespace ciranda {

// A collective between participants (hosts, or ranks in a flat plan) as data. A step names the
// bytes to send and to receive, the peers, the use of the received bytes, and what must happen
// before. Pure: every participant computes the schedule from agreed figures, without a clock or an
// order of arrival, so that the same bits come out on every participant and in every run.
// Thread-safe; computing a step allocates nothing.
//
// Channels are independent: one may run ahead of another, and each has its own scratch. The
// messages between two participants on a channel travel in the order of the steps, in each
// direction. An executor gives each channel its own sockets.
//
// The sends of a channel happen in the order of the steps, and so do its receives. Each of the two
// runs as fast as it can and waits only for what the step names: a number of sends, receives or
// chunks that must be done. A send or receive without bytes is no message and is done when its turn
// comes.
//
// No schedule deadlocks, however little a connection buffers, if each channel keeps receiving while
// it sends. A receive that reduces needs up to `segment_bytes` of room until it may be applied.

enum class Space : std::uint8_t {
  kInput,   // the participant's own contribution, never written
  kOutput,  // its result; for allreduce and broadcast it may be the same memory as the input
  kScratch,
};

// Positions and sizes are bytes of the payload. A message may have fewer bytes
// (Collective::narrowing). Each piece begins on an element: blocks are cut in units of 64 bytes.
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
  int to = kNobody;  // self: no message, the step's receive copies the piece
  Piece piece = {};
  std::uint32_t after_receives = 0;  // begins when this many receives are applied
  std::uint32_t after_chunks = 0;    // and this many chunks of the input are made
};

enum class Apply : std::uint8_t { kCopy, kReduceOwnFirst, kReduceReceivedFirst };

struct Receive {
  int from = kNobody;
  Piece piece = {};  // destination of the result
  Apply apply = Apply::kCopy;
  Piece own = {};                  // kReduce…: the other operand, of the same size
  bool completes = false;          // these bytes are fully reduced: apply the postscale
  std::uint32_t after_sends = 0;   // applied when this many sends have left
  std::uint32_t after_chunks = 0;  // and this many chunks of the input are made
};

struct Step {
  Send send = {};
  Receive receive = {};
};

// Returns true if both ends of the step reduce the same two operands, which they send to each
// other. If messages are rounded, each end must round its own operand too.
bool exchanges(const Step& step);

// The operation to schedule; the same on every participant.
struct Collective {
  OpKind kind = OpKind::kAllreduce;
  int participants = 1;
  int root = kNobody;                       // broadcast
  std::uint64_t payload_bytes = 0;          // allreduce, broadcast
  std::vector<std::uint64_t> offsets = {};  // other kinds: as StagedShape::offsets, on elements
  // Messages have 1/narrowing of the bytes of their pieces: 2 if float32 travels in 16 bits.
  std::uint64_t narrowing = 1;
};

// kShort needs few half round trips, kRing sends few bytes: see short_messages.h and ring.h.
enum class Algorithm : std::uint8_t { kShort, kRing };

// How finely blocks are cut. A block is striped over the channels, and a stripe is cut into
// segments, so that one segment is reduced while the next is on its way.
struct Grain {
  int channels = 1;                        // at most
  std::uint64_t stripe_bytes_min = 65536;  // fewer channels if a block's stripes would be shorter
  std::uint64_t segment_bytes = 131072;  // at most (at least 64), unless a stripe needs over 65536
};

// The place of a step in the rounds of its channel. A round has one step for each segment.
struct Turn {
  std::uint32_t index = 0;
  int round = 0;
  std::uint32_t segment = 0;
  std::uint32_t round_ago = 0;  // same segment one round before, as a count: its index + 1; 0: none
};

// How the data is cut. ring.h and short_messages.h make steps from it.
struct Layout {
  Collective collective;
  int self = 0;
  int channels = 1;
  std::uint32_t segments = 1;                // of a stripe
  std::uint64_t segment_bytes = 0;           // of the longest segment
  std::vector<std::uint64_t> received = {};  // alltoall: where each sender's part begins

  // Returns the block that participant `index` owns: a share of the payload, or its part.
  Range block(int index) const;
  Range whole() const { return {0, collective.payload_bytes}; }
  Range stripe(Range block, int channel) const;
  Range segment(Range block, int channel, std::uint32_t index) const;
  Turn turn(std::uint32_t index) const;
};

// The size of an algorithm's schedule.
struct Extent {
  std::uint32_t rounds = 0;
  std::uint32_t chunks = 0;  // in units of Layout::segments, like the rounds
  std::uint64_t scratch_bytes = 0;
};

class Schedule {
 public:
  // Reducescatter has no short form; alltoall and barrier have only the short form.
  Schedule(Collective collective, int self, Algorithm algorithm, Grain grain = {});

  int channels() const { return layout_.channels; }
  std::uint32_t steps() const { return steps_; }  // of each channel
  Step step(int channel, std::uint32_t index) const;
  // The chunks in which a reduction's input may be made (see hierarchical.h), in the order in which
  // the steps read them. Without chunks, the input must be complete before the first step.
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

// Returns a table for people, with one line per step.
std::string to_string(const Schedule& schedule);

}  // namespace ciranda
