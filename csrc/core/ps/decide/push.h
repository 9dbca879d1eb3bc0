#pragma once

#include <cstdint>
#include <vector>

#include "core/kernels/update_rule.h"
#include "core/ps/decide/model.h"
#include "core/ps/decide/task_parts.h"
#include "core/ps/decide/vectors.h"

namespace ciranda::ps {

// A push of a worker's gradients. All members but `base` are the same for every server.
struct Push {
  Worker worker = 0;
  std::uint64_t seq = 0;   // one more than the worker's previous push; the first is 1
  std::uint64_t base = 0;  // the server's version that the gradients were computed from
  // One more than the worker's previous clock, or than a larger one that a server has answered. It
  // is the same for every server, so that no two workers can wait for each other at different
  // servers.
  std::uint64_t clock = 0;
  double scale = 1.0;                           // factor of the gradients
  std::vector<kernels::UpdateRule> rules = {};  // one per table, unless rule_slots is set
  // One per slot, through all tables: true if this push has a gradient for it. Where it has none,
  // the worker writes zeros: the server adds them if another push of the round has a gradient.
  std::vector<bool> used = {};
  TaskPart of = {};
  // The vector that the gradients are added to, see Vectors. 0: they update the parameters.
  VectorId into = kParametersVector;
  // The number of slots of each rule, in the order of the tables. No rule spans two tables.
  // Empty: each rule is for a table.
  std::vector<std::uint32_t> rule_slots = {};
  bool operator==(const Push&) const = default;
};

enum class Outcome : std::uint8_t {
  kApplied,
  kDuplicate,  // decided before, or another worker has pushed this part of its task
  kStale,      // computed from parameters that are too old: not applied
  kLate,       // its round finished without it: not applied
};
inline constexpr int kOutcomeCount = 4;

// The answer to a push. The parameters in the worker's memory are then those of `version`.
struct Ack {
  Worker worker = 0;
  std::uint64_t seq = 0;
  Outcome outcome = Outcome::kApplied;
  std::uint64_t version = 0;  // number of pushes applied; kSync: of rounds
  std::uint64_t clock = 0;    // the worker's clock as the server counts it, maybe above the push's
  std::uint64_t held_ns = 0;  // time that it waited for other workers; set by ServerProtocol
  std::uint64_t checkpoint = 0;  // the latest announced one, if this is server 0; set likewise
  bool operator==(const Ack&) const = default;
};

}  // namespace ciranda::ps
