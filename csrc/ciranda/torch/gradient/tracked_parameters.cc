#include "ciranda/torch/gradient/tracked_parameters.h"

#include <algorithm>
#include <utility>

#include "ciranda/torch/gradient/bucket_plan.h"
#include "ciranda/torch/process/default_world.h"
#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/tensor_view.h"
#include "core/base/assert.h"

namespace ciranda {

TrackedParameters::TrackedParameters(std::shared_ptr<const Communicator> among,
                                     const ReducerOptions& options)
    : among_(std::move(among)), options_(options), shares_step_(options.shared_step) {}

void TrackedParameters::add(TrackedParameter tracked) {
  CIRANDA_ASSERT(!tracked.bucketed && !tracked.foreign);
  tracked_.push_back(std::move(tracked));
  ++unbucketed_;
}

bool TrackedParameters::refresh_hooks(bool needed) {
  for (const auto& bucket : buckets_) needed = bucket->gradients().had_strays() || needed;
  if (!needed) return false;
  bool again = false;
  for (TrackedParameter& tracked : tracked_) {
    if (tracked.foreign) continue;
    GradientBuffer* const gradients = tracked.bucketed ? &tracked.bucket->gradients() : nullptr;
    const bool known = gradients == nullptr || gradients->knows_accumulator(tracked.slot);
    if (known && tracked.owners->settled()) continue;
    const auto accumulator = tracked.owners->hook(tracked.parameter);
    if (accumulator && gradients != nullptr) gradients->attach(tracked.slot, accumulator);
    if (!tracked.owners->settled()) again = true;
  }
  return again;
}

void TrackedParameters::bucket_unfrozen(bool frozen_too) {
  if (unbucketed_ == 0) return;
  std::vector<Unplaced> wanted;
  for (std::size_t position = 0; position < tracked_.size(); ++position) {
    const TrackedParameter& tracked = tracked_[position];
    if (tracked.bucketed) continue;
    if (tracked.parameter.requires_grad() ||
        (frozen_too && tracked.parameter.is_floating_point())) {
      wanted.push_back({position, tracked.parameter, tracked.rule});
    }
  }
  for (const auto& positions : plan_buckets(wanted, options_)) add_bucket(positions);
}

void TrackedParameters::add_bucket(const std::vector<std::size_t>& positions) {
  std::vector<GradientBuffer::Member> members;
  for (const std::size_t position : positions) {
    const std::string& name = tracked_[position].name;
    const at::Tensor& parameter = tracked_[position].parameter;
    const std::string what = "DistributedOptimizer: parameter '" + name + "'";
    check_device(parameter.device(), what);
    if (!is_floating(dtype_of(parameter.scalar_type(), what))) {
      throw Exception(
          {.code = ErrorCode::kInvalidArgument, .text = what + " is not of a floating dtype"});
    }
    members.push_back({.name = name,
                       .parameter = parameter,
                       .accumulator = tracked_[position].owners->hook(parameter)});
  }
  Bucket::Contents contents{.reduction = reduction_of(options_, among_->group->size()),
                            .rule = tracked_[positions.front()].rule,
                            .shared_step = shares_step_};
  contents.reduction.name += "/bucket." + std::to_string(buckets_.size());
  const auto& [first, parameter, accumulator] = members.front();
  if (!parameter.device().is_cpu()) {
    const std::string what = "DistributedOptimizer: parameter '" + first + "'";
    if (shares_step_) {
      throw Exception({.code = ErrorCode::kInvalidArgument,
                       .text = what + " is on " + parameter.device().str() +
                               ", but ranks share the step of CPU parameters only; make the "
                               "optimizer after moving every parameter to its final device"});
    }
    contents.stream = default_stream(parameter.device(), what);
  }
  contents.members = std::move(members);
  buckets_.push_back(std::make_unique<Bucket>(among_, options_, std::move(contents)));
  for (std::size_t slot = 0; slot < positions.size(); ++slot) {
    TrackedParameter& tracked = tracked_[positions[slot]];
    CIRANDA_ASSERT(!tracked.bucketed);  // I15
    tracked.bucketed = true;
    tracked.bucket = buckets_.back().get();
    tracked.slot = slot;
    tracked.bucket->set_foreign(slot, tracked.foreign);
  }
  CIRANDA_ASSERT(positions.size() <= unbucketed_);
  unbucketed_ -= positions.size();
}

bool TrackedParameters::set_foreign(std::size_t position, bool foreign) {
  TrackedParameter& tracked = tracked_.at(position);
  if (tracked.foreign == foreign) return false;
  tracked.foreign = foreign;
  CIRANDA_ASSERT(foreign ? foreign_ < tracked_.size() : foreign_ > 0);
  foreign ? ++foreign_ : --foreign_;
  if (tracked.bucketed) tracked.bucket->set_foreign(tracked.slot, foreign);
  return true;
}

bool TrackedParameters::frozen_with_gradient() const {
  return unbucketed_ > 0 &&
         std::any_of(tracked_.begin(), tracked_.end(), [](const TrackedParameter& tracked) {
           return !tracked.bucketed && !tracked.foreign && tracked.parameter.grad().defined();
         });
}

void TrackedParameters::end_shared_step() {
  shares_step_ = false;
  for (const auto& bucket : buckets_) bucket->end_shared_step();
}

}  // namespace ciranda
