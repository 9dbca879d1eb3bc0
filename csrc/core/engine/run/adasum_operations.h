#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/backend/backend.h"
#include "core/engine/rank_context.h"

namespace ciranda {

// Runs allreduces with ReduceOp::kAdasum once they are agreed: each member of the group gets a
// slice of all members' payloads (alltoall), the dot products of the slices are added up
// (allreduce), and the weighted slices are collected (allgather). These are operations like a
// user's, of the same group and backend. One after the other: so each has the same name, and is
// known after its first time.
//
// One thread at a time, as for a Backend. Never blocks.
class AdasumOperations {
 public:
  explicit AdasumOperations(RankContext& rank) : rank_(rank) {}

  // Of memory of the CPU; in the same order on all members.
  void start(Execution&& execution);
  // True if anything moved.
  bool advance();
  bool idle() const { return waiting_.empty(); }
  // Ranks of this host that may have to act, without knowing it.
  void blocked_on(std::vector<Rank>& out) const;
  void abort(const Error& why);

 private:
  struct Work;
  void begin(Work& work);
  void add_up_products(Work& work);
  void collect(Work& work);
  Status submit(const std::shared_ptr<Work>& work, Submission&& submission, OpKind kind,
                TensorSpec tensor);
  void finish(const Status& status);

  RankContext& rank_;
  std::deque<std::shared_ptr<Work>> waiting_;  // the first one runs
};

}  // namespace ciranda
