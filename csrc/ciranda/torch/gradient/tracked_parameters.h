#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ciranda/torch/collective/collective.h"
#include "ciranda/torch/gradient/bucket.h"
#include "ciranda/torch/gradient/gradient_owners.h"
#include "ciranda/torch/step/reducer_options.h"

namespace ciranda {

// A parameter of the optimizer. The members that its hook reads lie in one cache line.
struct alignas(64) TrackedParameter {
  at::Tensor parameter;
  bool foreign = false;  // another optimizer reduces its gradient
  bool bucketed = false;
  Bucket* bucket = nullptr;  // null until bucketed
  std::size_t slot = 0;
  std::string name;
  std::shared_ptr<GradientOwners> owners;
  std::size_t rule = 0;  // number of its update rule, for a shared step
};

// The parameters of a GradientReducer, by position, and the buckets in which their gradients lie. A
// frozen parameter gets its slot of a bucket when it is unfrozen.
//
// Not thread-safe; belongs to a GradientReducer. Throws Exception.
class TrackedParameters {
 public:
  TrackedParameters(std::shared_ptr<const Communicator> among, const ReducerOptions& options);

  void add(TrackedParameter tracked);
  std::size_t size() const { return tracked_.size(); }
  TrackedParameter& at(std::size_t position) { return tracked_.at(position); }
  const std::vector<TrackedParameter>& all() const { return tracked_; }
  const std::vector<std::unique_ptr<Bucket>>& buckets() const { return buckets_; }

  // Puts hooks and places where autograd looks for them: a parameter that was converted has another
  // accumulator. Looks only if `needed`, or if a gradient was born elsewhere. Returns true if it
  // has to look again.
  bool refresh_hooks(bool needed);
  // Gives a bucket to every parameter that requires a gradient and has none yet. `frozen_too`: also
  // to frozen ones of a floating dtype. Throws kInvalidArgument for another dtype.
  void bucket_unfrozen(bool frozen_too = false);
  // Returns false if the parameter was that already.
  bool set_foreign(std::size_t position, bool foreign);
  bool any_foreign() const { return foreign_ > 0; }
  // Returns true if a parameter without a bucket has a gradient: an optimizer steps with it.
  bool frozen_with_gradient() const;

  // Returns true while the ranks share the step.
  bool shares_step() const { return shares_step_; }
  void end_shared_step();

 private:
  void add_bucket(const std::vector<std::size_t>& positions);

  const std::shared_ptr<const Communicator> among_;
  const ReducerOptions& options_;
  bool shares_step_;
  std::vector<TrackedParameter> tracked_;
  std::size_t unbucketed_ = 0;  // of tracked_
  std::size_t foreign_ = 0;     // of tracked_
  std::vector<std::unique_ptr<Bucket>> buckets_;
};

}  // namespace ciranda
