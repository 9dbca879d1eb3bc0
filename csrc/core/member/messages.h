#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/base/result.h"

namespace ciranda::member {

// The messages between the arbiter of an elastic job and its processes, one datagram each;
// docs/protocol.md gives their bytes. They are plain data, without I/O or a clock.

// A process's number in the job. The arbiter gives each number once, from 1. 0: none.
using Incarnation = std::uint32_t;
// The number of a membership, from 1. 0: none.
using EpochNumber = std::uint32_t;
// A host's number in the job, from 0. It stays the same, whoever runs there.
using HostNumber = std::uint32_t;

// --- From a process ---

// Says that the process can become a member. It has no answer before an epoch has room.
struct Ready {
  bool operator==(const Ready&) const = default;
};

// Says that the process has met the other members of the epoch and holds the state of the training.
struct Formed {
  EpochNumber epoch = 0;
  std::uint64_t step = 0;  // how far the state is, for people
  bool operator==(const Formed&) const = default;
};

// Says that the program has come to its end. A member then leaves its World and waits for NewEpoch
// or Over, and says it again in each epoch in which it comes to its end. A process that is no
// member waits for nothing.
struct AtEnd {
  // The epoch in which the program left its last loop: since then it has acted as that rank. 0: the
  // process is no member.
  EpochNumber since = 0;
  bool operator==(const AtEnd&) const = default;
};

// Says that the process runs. Once it has said so, silence for a lease means that it stands still:
// it is stopped, or frozen.
struct Beat {
  bool operator==(const Beat&) const = default;
};
inline constexpr std::uint64_t kBeatNs = 100'000'000;  // between two beats of a process

// Says that the process of another member has begun to end: the kernel has told so (LifeWatch). It
// does nothing any more, and may still take a while to be reaped.
struct Died {
  Incarnation who = 0;
  bool operator==(const Died&) const = default;
};

// Says that an operation of this member needs another one, which has left the World of their epoch
// and takes part no more. That one is in a newer epoch, or its program has ended too early.
struct LeftEarly {
  Incarnation who = 0;
  EpochNumber epoch = 0;
  std::uint64_t step = 0;  // of this member, for people
  bool operator==(const LeftEarly&) const = default;
};

// Says that this member cannot reach another one, which is on another host: their connection has
// broken, or was never made. Not said of a rank of which others say so.
struct Unreachable {
  Incarnation who = 0;
  EpochNumber epoch = 0;
  bool operator==(const Unreachable&) const = default;
};

using FromRank = std::variant<Ready, Formed, AtEnd, Beat, Died, LeftEarly, Unreachable>;

// --- From the arbiter ---

// Names the members of the next epoch. Only members get it.
struct NewEpoch {
  EpochNumber number = 0;
  bool planned = false;  // the members' World is whole; each leaves it at a block's begin
  std::vector<Incarnation> members;    // in the order of their ranks
  std::vector<HostNumber> hosts = {};  // of the members; empty: all are on one host
  std::string meet_at = {};            // HOST:PORT where rank 0 listens; empty: all are on one host
  bool operator==(const NewEpoch&) const = default;
};

// Says that the process may leave: all members are at their end, or its host leaves the job.
struct Over {
  bool operator==(const Over&) const = default;
};

using FromArbiter = std::variant<NewEpoch, Over>;

inline constexpr std::size_t kMeetAtBytesMax = 320;

std::vector<std::byte> encode(const FromRank& message);
std::vector<std::byte> encode(const FromArbiter& message);
// kMalformed: the bytes are no message.
Result<FromRank> decode_from_rank(std::span<const std::byte> bytes);
Result<FromArbiter> decode_from_arbiter(std::span<const std::byte> bytes);

}  // namespace ciranda::member
