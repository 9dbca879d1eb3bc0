#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
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

// Says that the program has come to its end. A member then waits for NewEpoch or Over, and says it
// again in each epoch in which it comes to its end. A process that is no member waits for nothing.
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

using FromRank = std::variant<Ready, Formed, AtEnd, Beat>;

// --- From the arbiter ---

// Names the members of the next epoch. Only members get it.
struct NewEpoch {
  EpochNumber number = 0;
  bool planned = false;  // the members' World is whole; each leaves it at a block's begin
  std::vector<Incarnation> members;  // in the order of their ranks
  bool operator==(const NewEpoch&) const = default;
};

// Says that all members are at their end, so that each may leave.
struct Over {
  bool operator==(const Over&) const = default;
};

using FromArbiter = std::variant<NewEpoch, Over>;

std::vector<std::byte> encode(const FromRank& message);
std::vector<std::byte> encode(const FromArbiter& message);
// kMalformed: the bytes are no message.
Result<FromRank> decode_from_rank(std::span<const std::byte> bytes);
Result<FromArbiter> decode_from_arbiter(std::span<const std::byte> bytes);

}  // namespace ciranda::member
