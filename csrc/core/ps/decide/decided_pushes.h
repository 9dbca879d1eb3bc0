#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/assert.h"
#include "core/ps/decide/model.h"
#include "core/ps/decide/push.h"
#include "core/ps/decide/task_parts.h"
#include "core/wire/codec.h"

namespace ciranda::ps {

struct PushCounters {
  std::array<std::uint64_t, kOutcomeCount> outcomes{};
  // Number of pushes by staleness: 0, 1, 2, 3, 4 to 7, 8 to 15, …; the last bin counts all above.
  std::array<std::uint64_t, 16> staleness{};
};

// Which pushes a server has decided, and how. Each is decided once, in its worker's order.
//
// Not thread-safe.
class DecidedPushes {
 public:
  explicit DecidedPushes(int workers) : members_(static_cast<std::size_t>(workers)) {}

  // Returns the seq of the worker's latest decided push.
  std::uint64_t latest(Worker worker) const { return at(worker).latest; }
  // The worker's pushes up to `seq` are over, wherever they were decided.
  void skip_to(Worker worker, std::uint64_t seq);
  // Decides the worker's next push.
  void decide(Worker worker, std::uint64_t seq, Outcome outcome);
  // Counts a push that was decided before.
  void count_duplicate() { count(Outcome::kDuplicate); }
  void count_staleness(std::uint64_t staleness);
  // Records the part. Returns false if an earlier push was the same part of its task.
  bool is_first(const TaskPart& part) { return parts_.add(part); }
  // Replays a decision that decide() has made.
  void repeat(const Push& push, Outcome outcome);

  // Returns how many of the worker's pushes were applied, stale or late.
  std::uint64_t pushes(Worker worker) const { return at(worker).pushes; }
  const PushCounters& counters() const { return counters_; }

  // Writes the outcomes and the parts, but not latest() and pushes().
  void save(Writer& out) const;
  void restore(Reader& in);  // sets in.error() if the bytes are invalid
  void restore_latest(Worker worker, std::uint64_t seq) { at(worker).latest = seq; }
  void restore_pushes(Worker worker, std::uint64_t pushes) { at(worker).pushes = pushes; }

 private:
  struct Member {
    std::uint64_t latest = 0;
    std::uint64_t pushes = 0;
  };
  Member& at(Worker worker) {
    CIRANDA_ASSERT(static_cast<std::size_t>(worker) < members_.size());
    return members_[static_cast<std::size_t>(worker)];
  }
  const Member& at(Worker worker) const {
    CIRANDA_ASSERT(static_cast<std::size_t>(worker) < members_.size());
    return members_[static_cast<std::size_t>(worker)];
  }
  void count(Outcome outcome) { ++counters_.outcomes[static_cast<std::size_t>(outcome)]; }

  std::vector<Member> members_;
  TaskParts parts_;
  PushCounters counters_;
};

}  // namespace ciranda::ps
