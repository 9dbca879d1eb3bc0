#include "ciranda/torch/gradient/gradient_sync.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ciranda/torch/collective/collectives.h"
#include "ciranda/torch/gradient/sparse_gradients.h"
#include "core/base/assert.h"

namespace ciranda {

GradientSync::GradientSync(std::shared_ptr<Engine> engine,
                           std::shared_ptr<const Communicator> among, const ReducerOptions& options,
                           TrackedParameters& parameters, PassTracker& passes)
    : engine_(std::move(engine)),
      among_(std::move(among)),
      options_(options),
      parameters_(parameters),
      passes_(passes) {}

void GradientSync::wait_beside_backward(const Wait& wait) {
  const std::string buckets = options_.name + "/bucket.";
  std::exception_ptr problem;
  wait([&] {
    const auto crossing = engine_->crossing(options_.name + "/");
    if (!crossing || problem || !crossing->theirs.starts_with(buckets)) return;
    if (crossing->mine.starts_with(buckets)) {
      engine_->abort(
          "rank " + std::to_string(engine_->rank()) + " is in step() and rank " +
          std::to_string(crossing->other) +
          " is still in backward(): ranks that share a step on several hosts must all make the "
          "same number of backward passes before it (backward_passes_per_step=" +
          std::to_string(passes_.per_step()) +
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

// Uses a sum, to which ranks that have joined add zeros.
int GradientSync::most_of_ranks(int mine, const char* what) {
  constexpr auto kNumbers = static_cast<std::int64_t>(Work::kPlace) + 1;
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

void GradientSync::reduce_if_any_rank(Work mine) {
  const auto most = static_cast<Work>(most_of_ranks(static_cast<int>(mine), "fresh"));
  if (most == Work::kNone) return;
  if (most == Work::kPlace) parameters_.bucket_unfrozen(/*frozen_too=*/true);
  reduce_now();
}

// Returns true if p.grad still counts as reduced. Averages that were edited may differ between
// ranks, so they are averaged again, which is exact if they do not differ. Sums that were edited
// still count as reduced.
bool GradientSync::is_reduced(const GradientSlot& slot) const {
  const at::Tensor& gradient = slot.parameter.grad();
  if (!slot.reduced) return false;
  return options_.op == ReduceOp::kAverage ? slot.reduced->same(gradient)
                                           : slot.reduced->same_object(gradient);
}

GradientSync::Work GradientSync::needed() const {
  bool any_reduced = false;
  bool any_edited = false;
  bool any_new = false;
  for (const auto& bucket : parameters_.buckets()) {
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
          throw SpoiledGradients(
              "the gradient of '" + slot.name +
              "' was replaced after gradients had been summed over the ranks, and may hold this "
              "rank's value or the sum; call the optimizer's zero_grad() before the gradient is "
              "computed, or edit the gradient in place");
        }
        any_new = true;
      }
    }
  }
  if (parameters_.frozen_with_gradient()) return Work::kPlace;
  if (!any_edited && !any_new) return Work::kNone;
  const bool can_add_up = engine_->one_host() && parameters_.shares_step() &&
                          (options_.op == ReduceOp::kAverage || !any_reduced);
  const bool may_add_up = !options_.reduce_in_backward || !any_new;  // else p.grad needs the result
  return can_add_up && may_add_up ? Work::kAddUp : Work::kReduce;
}

void GradientSync::reduce_now() {
  try {
    parameters_.bucket_unfrozen();
    std::vector<Handle> handles;
    for (const auto& bucket : parameters_.buckets()) {
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
    for (const auto& bucket : parameters_.buckets()) {
      if (!bucket->gradients().foreign()) bucket->write_back();
    }
    reduce_sparse(parameters_.buckets(), options_, *among_);
    for (const auto& bucket : parameters_.buckets()) {
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
void GradientSync::refuse_writes_in_flight() {
  for (const auto& bucket : parameters_.buckets()) {
    const GradientSlot* const written = bucket->gradients().written_since_taken();
    if (written == nullptr) continue;
    throw SpoiledGradients(
        "the gradient of '" + written->name +
        "' was written to while it was being reduced, by a hook that was added after the first "
        "backward pass, or by another thread; change a gradient in a hook of its own parameter, or "
        "after backward()");
  }
}

// Takes new gradients. Divides sums that are already reduced by the number of ranks, so that their
// next sum is the same.
void GradientSync::add_up_once(Bucket& bucket) {
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

void GradientSync::start_step() {
  for (const auto& bucket : parameters_.buckets()) bucket->reset();
  passes_.start_step();
}

void GradientSync::await_in_flight() {
  std::vector<Handle> handles;
  for (const auto& bucket : parameters_.buckets()) bucket->append_handles(handles);
  for (const Handle& handle : handles) (void)engine_->wait(handle);
}

}  // namespace ciranda
