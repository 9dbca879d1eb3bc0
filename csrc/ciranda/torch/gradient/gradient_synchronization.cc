// Decides which gradients of a step are reduced, and when.

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <utility>

#include "ciranda/torch/collective/collectives.h"
#include "ciranda/torch/gradient/gradient_reducer.h"
#include "ciranda/torch/gradient/sparse_gradients.h"
#include "ciranda/torch/tensor/error.h"
#include "core/base/assert.h"

namespace ciranda {

void GradientReducer::synchronize() {
  synchronize_foreign();
  synchronize_own();
}

void GradientReducer::synchronize_own() {
  const MutexLock lock(mutex_);
  throw_kept_error();
  refresh_hooks();
  bucket_unfrozen();
  reduce_if_any_rank(gradients_now());
}

// Synchronizes the optimizers that reduce gradients of this one's parameters.
void GradientReducer::synchronize_foreign() {
  std::map<std::uint64_t, std::shared_ptr<GradientReducer>> owners;
  {
    const MutexLock lock(mutex_);
    if (foreign_ == 0) return;
    for (const TrackedParameter& tracked : tracked_) {
      if (!tracked.foreign) continue;
      auto owner = tracked.owners->owner();
      if (owner && owner.get() != this) owners.emplace(owner->number_, std::move(owner));
    }
  }
  for (const auto& [number, owner] : owners) owner->synchronize_own();
}

void GradientReducer::wait_in_step(const Wait& wait) {
  const MutexLock lock(mutex_);
  wait_beside_backward(wait);
}

// Runs `wait`. Ranks that make more backward passes before this step wait in backward() for this
// rank's gradients, so this rank takes part in their reduction meanwhile. The step itself asks all
// ranks again.
void GradientReducer::wait_beside_backward(const Wait& wait) {
  const std::string buckets = options_.name + "/bucket.";
  std::exception_ptr problem;
  wait([&]() REQUIRES(mutex_) {
    const auto crossing = engine_->crossing(options_.name + "/");
    if (!crossing || problem || !crossing->theirs.starts_with(buckets)) return;
    if (crossing->mine.starts_with(buckets)) {
      engine_->abort(
          "rank " + std::to_string(engine_->rank()) + " is in step() and rank " +
          std::to_string(crossing->other) +
          " is still in backward(): ranks that share a step on several hosts must all make the "
          "same number of backward passes before it (backward_passes_per_step=" +
          std::to_string(passes_) +
          "); make the numbers equal, or pass shared_step=False, which allows different numbers");
      return;
    }
    try {
      reduce_now();
    } catch (...) {
      problem = std::current_exception();
    }
  });
  if (problem) std::rethrow_exception(problem);
}

// Returns the largest `mine` of the ranks, from 0 to kPlace. It uses a sum, to which ranks that
// have joined add zeros. Collective, blocking.
int GradientReducer::most_of_ranks(int mine, const char* what) {
  constexpr auto kNumbers = static_cast<std::int64_t>(Gradients::kPlace) + 1;
  const at::Tensor ranks_with = at::zeros({kNumbers}, at::TensorOptions(c10::ScalarType::Int));
  auto* const counts = ranks_with.mutable_data_ptr<std::int32_t>();
  counts[mine] = 1;
  wait_beside_backward([&](const Engine::Look& look) {
    allreduce(*among_, ranks_with, ranks_with,
              {.name = options_.name + "/" + what, .op = ReduceOp::kSum}, look);
  });
  std::int64_t most = kNumbers - 1;
  while (most > 0 && counts[most] == 0) --most;
  return static_cast<int>(most);
}

// Reduces if any rank has something to reduce. Collective, blocking.
void GradientReducer::reduce_if_any_rank(Gradients mine) {
  const auto most = static_cast<Gradients>(most_of_ranks(static_cast<int>(mine), "fresh"));
  if (most == Gradients::kReduced) return;
  if (most == Gradients::kPlace) bucket_unfrozen(/*frozen_too=*/true);
  reduce_now();
}

// Returns true if p.grad still counts as reduced. Averages that were edited may differ between
// ranks, so they are averaged again, which is exact if they do not differ. Sums that were edited
// still count as reduced.
bool GradientReducer::is_reduced(const GradientSlot& slot) const {
  const at::Tensor& gradient = slot.parameter.grad();
  if (!slot.reduced) return false;
  return options_.op == ReduceOp::kAverage ? slot.reduced->same(gradient)
                                           : slot.reduced->same_object(gradient);
}

GradientReducer::Gradients GradientReducer::gradients_now() {
  bool any_reduced = false;
  bool any_edited = false;
  bool any_new = false;
  for (const auto& bucket : buckets_) {
    for (const GradientSlot& slot : bucket->slots()) {
      if (slot.foreign) continue;
      CIRANDA_ASSERT(!slot.ready || !slot.reduced);  // I15: either taken now, or reduced before
      const at::Tensor& gradient = slot.parameter.grad();
      if (is_reduced(slot)) {
        any_reduced = any_reduced || gradient.defined();
      } else if (slot.reduced && slot.reduced->same_object(gradient)) {
        any_edited = true;
      } else if (slot.reduced || gradient.defined()) {
        if (slot.reduced && gradient.defined() && options_.op != ReduceOp::kAverage) {
          throw Exception(
              {.code = ErrorCode::kInvalidArgument,
               .text = "the gradient of '" + slot.name +
                       "' was replaced after gradients had been summed over the ranks, and may "
                       "hold this rank's value or the sum; call the optimizer's zero_grad() before "
                       "the gradient is computed, or edit the gradient in place"});
        }
        any_new = true;
      }
    }
  }
  // An optimizer steps with any gradient that a parameter has.
  const auto frozen_with_gradient = [](const TrackedParameter& tracked) {
    return !tracked.bucketed && !tracked.foreign && tracked.parameter.grad().defined();
  };
  if (unbucketed_ > 0 && std::any_of(tracked_.begin(), tracked_.end(), frozen_with_gradient)) {
    return Gradients::kPlace;
  }
  if (!any_edited && !any_new) return Gradients::kReduced;
  const bool can_add_up =
      engine_->one_host() && shared_step_ && (options_.op == ReduceOp::kAverage || !any_reduced);
  const bool may_add_up = !options_.reduce_in_backward || !any_new;  // else p.grad needs the result
  return can_add_up && may_add_up ? Gradients::kAddUp : Gradients::kReduce;
}

void GradientReducer::finish_step() {
  const MutexLock lock(mutex_);
  in_pass_ = false;
  passes_done_ = 0;
}

void GradientReducer::discard_step() {
  std::vector<std::shared_ptr<GradientOwners>> foreign;
  {
    const MutexLock lock(mutex_);
    if (foreign_ > 0) {
      for (const TrackedParameter& tracked : tracked_) {
        if (tracked.foreign) foreign.push_back(tracked.owners);
      }
    }
  }
  for (const auto& owners : foreign) owners->forget();
  const MutexLock lock(mutex_);
  if (std::exchange(gradients_spoiled_, false) && kept_error_) {
    kept_error_ = nullptr;
    await_in_flight();
    start_step();
  }
  throw_kept_error();
  refresh_hooks();
  bucket_unfrozen();
  // The test is for a taken gradient, not for a submitted bucket: all ranks have begun the same
  // pass, but they may have completed different buckets.
  const bool begun = std::any_of(buckets_.begin(), buckets_.end(),
                                 [](const auto& bucket) { return bucket->gradients().begun(); });
  if (begun && options_.reduce_in_backward) reduce_now();
  start_step();
  for (const auto& bucket : buckets_) bucket->gradients().forget_gradients();
}

// Leaves the reducer ready for a new step, also if it throws.
void GradientReducer::reduce_now() {
  try {
    bucket_unfrozen();
    std::vector<Handle> handles;
    for (const auto& bucket : buckets_) {
      if (bucket->gradients().foreign()) continue;
      if (!bucket->submitted()) {
        add_up_once(*bucket);
        bucket->submit();
      }
      bucket->append_handles(handles);
    }
    const Status done = engine_->wait(handles);
    refuse_writes_in_flight();  // they may be why it failed
    check(done);
    for (const auto& bucket : buckets_) {
      if (!bucket->gradients().foreign()) bucket->write_back();
    }
    reduce_sparse(buckets_, options_, *among_);
    for (const auto& bucket : buckets_) {
      if (!bucket->gradients().foreign()) bucket->gradients().note_reduced();
    }
  } catch (...) {
    await_in_flight();
    start_step();
    throw;
  }
  start_step();
}

// Throws if a gradient was written to while it was being reduced: ranks have read it half written,
// and one write has overwritten the other.
void GradientReducer::refuse_writes_in_flight() {
  for (const auto& bucket : buckets_) {
    const GradientSlot* const written = bucket->gradients().written_since_taken();
    if (written == nullptr) continue;
    gradients_spoiled_ = true;
    throw Exception(
        {.code = ErrorCode::kInvalidArgument,
         .text =
             "the gradient of '" + written->name +
             "' was written to while it was being reduced, by a hook that was added after the "
             "first backward pass, or by another thread; change a gradient in a hook of its own "
             "parameter, or after backward()"});
  }
}

// Takes new gradients. Divides sums that are already reduced by the number of ranks, so that their
// next sum is the same.
void GradientReducer::add_up_once(Bucket& bucket) {
  std::vector<std::size_t> summed;
  if (options_.op != ReduceOp::kAverage) {
    for (std::size_t i = 0; i < bucket.slots().size(); ++i) {
      const GradientSlot& slot = bucket.slots()[i];
      if (!slot.foreign && slot.parameter.grad().defined() && is_reduced(slot)) summed.push_back(i);
    }
  }
  bucket.gradients().take_new_gradients();
  for (const std::size_t i : summed) {
    if (!bucket.slots()[i].by_rows)
      bucket.slots()[i].memory.div_(static_cast<double>(among_->group->size()));
  }
}

void GradientReducer::start_step() {
  for (const auto& bucket : buckets_) bucket->reset();
  in_pass_ = false;
  passes_done_ = 0;
}

// Waits for operations in flight, since memory must not change while other ranks read it.
void GradientReducer::await_in_flight() {
  std::vector<Handle> handles;
  for (const auto& bucket : buckets_) bucket->append_handles(handles);
  for (const Handle& handle : handles) (void)engine_->wait(handle);
}

void GradientReducer::throw_kept_error() {
  if (!kept_error_) return;
  await_in_flight();
  start_step();
  gradients_spoiled_ = false;
  std::rethrow_exception(std::exchange(kept_error_, nullptr));
}

}  // namespace ciranda
