#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/backend/backend.h"
#include "core/engine/rank_context.h"

namespace ciranda {

// Runs agreed allreduces with ReduceOp::kAdasum. Each member of the group gets a slice of every
// member's payload (alltoall), the dot products of the slices are summed (allreduce), and the
// weighted slices are collected (allgather). These are operations like a user's, of the same group
// and backend. They run one after the other, so that they can have the same name, and are known
// operations after their first time.
//
// One thread at a time, as for a Backend. Never blocks.
class AdasumOperations {
 public:
  explicit AdasumOperations(RankContext& rank) : rank_(rank) {}

  // `execution` must be in CPU memory. All members must start theirs in the same order.
  void start(Execution&& execution);
  // Returns true if anything moved.
  bool advance();
  bool idle() const { return waiting_.empty(); }
  // Returns true if an operation of this group has not ended.
  bool works_for(GroupId group) const;
  // Appends the ranks of this host that may have to act without knowing it.
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
