// The optimizer's step, which the ranks of the host share.

#include <algorithm>
#include <cmath>
#include <utility>

#include "ciranda/torch/gradient/gradient_reducer.h"
#include "ciranda/torch/step/optimizer_checks.h"
#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/tensor_view.h"
#include "core/base/assert.h"

namespace ciranda {

void GradientReducer::set_rule(std::size_t number, const kernels::UpdateRule& rule) {
  const MutexLock lock(mutex_);
  if (rules_.size() <= number) rules_.resize(number + 1);
  rules_[number] = {.rule = rule,
                    .words = rule_text(rule),
                    .words_adding_up = rule_text(rule, " of gradients that are not reduced")};
}

StepOutcome GradientReducer::step(double gradient_scale, bool reduce, double max_norm,
                                  const std::string& objection) {
  if (reduce) synchronize_foreign();
  const MutexLock lock(mutex_);
  // I16: after end_shared_step() the ranks know that sharing has ended.
  CIRANDA_ASSERT(options_.shared_step && (shared_step_ || !ended_.empty()));
  throw_kept_error();
  refresh_hooks();
  bucket_unfrozen();
  StepOutcome outcome;
  try {
    outcome.why_not_shared = step_or_reason(gradient_scale, reduce, max_norm, objection);
  } catch (...) {
    await_in_flight();
    start_step();
    throw;
  }
  CIRANDA_ASSERT(ended_.empty() || !outcome.why_not_shared.empty());  // I16: it ends for good
  ended_ = outcome.why_not_shared;
  if (ended_.empty()) {
    for (const auto& bucket : buckets_) bucket->step()->count();
    start_step();
  }
  outcome.fresh = take_news();
  return outcome;
}

void GradientReducer::confirm_sharing() {
  const MutexLock lock(mutex_);
  const std::uint64_t joins = engine_->joins();
  if (!options_.shared_step || agreed_joins_ == joins) return;
  std::vector<std::string> texts;
  wait_beside_backward([&](const Engine::Look& look) {
    texts = texts_of_ranks(*among_, ended_, options_.name + "/ended", look);
  });
  for (std::string& text : texts) {
    if (ended_.empty()) ended_ = std::move(text);
  }
  agreed_joins_ = joins;
  asks_for_state_ = true;
}

// Prepares other state if the rules need other state than when the optimizer was made and no rank
// has any yet. Asks the ranks, because those of a host that had joined as a whole do not know the
// state of other hosts. Collective.
void GradientReducer::prepare_for_other_rules() {
  enum Wish { kNone, kOtherState, kThisState };
  Wish mine = kNone;
  for (const auto& bucket : buckets_) {
    const SharedStep& step = bucket->step()->shared();
    if (!step.prepared()) continue;  // the bucket may be this rank's alone yet
    const bool other = step.needs_other_state(rules_.at(bucket->rule()).rule);
    mine = std::max(mine, step.begun() ? kThisState : other ? kOtherState : kNone);
  }
  if (most_of_ranks(mine, "state") != kOtherState) return;
  for (const auto& bucket : buckets_) {
    SharedStep& step = bucket->step()->shared();
    if (step.prepared()) step.prepare(rules_.at(bucket->rule()).rule);
  }
}

// Prepares the buckets that are not prepared. Collective.
void GradientReducer::prepare_buckets() {
  for (const auto& bucket : buckets_) {
    SharedStep& step = bucket->step()->shared();
    if (!step.prepared()) step.prepare(rules_.at(bucket->rule()).rule);
  }
}

// Makes the step. Returns why the ranks do not share it; empty if it is done.
std::string GradientReducer::step_or_reason(double gradient_scale, bool reduce, double max_norm,
                                            const std::string& objection) {
  if (!ended_.empty()) {  // this rank learns of it after a join
    if (reduce) reduce_if_any_rank(gradients_now());
    return ended_;
  }
  if (asks_for_state_) {
    prepare_for_other_rules();
    asks_for_state_ = false;
  }
  for (bool again = false;; again = true) {
    prepare_buckets();
    const Gradients gradients = reduce ? gradients_now() : Gradients::kReduced;
    const std::string reason = objection.empty() ? objection_now() : objection;
    const bool object = gradients >= Gradients::kReduce || !reason.empty();
    try {
      if (try_step(gradient_scale, gradients, max_norm, object)) return "";
    } catch (const Exception& problem) {
      if (problem.error().code != ErrorCode::kMismatch || again) throw;
      await_in_flight();
      start_step();
      if (most_of_ranks(object || gradients != Gradients::kReduced, "objects") == 0) throw;
    }
    // Some rank objects, so all ranks come here: they did not agree, or every rank objects.
    std::string why = obstacle_of_a_rank(*among_, reason, options_.name + "/why");
    if (!why.empty() && options_.share_parameters) {
      throw Exception({.code = ErrorCode::kInvalidArgument,
                       .text = "DistributedOptimizer: share_parameters=True needs a shared step, "
                               "which is not possible any more: " +
                               why});
    }
    reduce_if_any_rank(gradients);
    if (!why.empty()) return why;
  }
}

// Returns true if the parameter's state is still to be adopted. The ranks of the host have adopted
// it once they have stepped, or have newer state.
bool GradientReducer::waits(const TrackedParameter& tracked) {
  if (!tracked.state) return false;
  SharedStepOperations* const step = tracked.bucketed ? tracked.bucket->step() : nullptr;
  return step == nullptr || !step->shared().begun();
}

// Takes over what the steps have done since the last call. Returns the positions of parameters that
// have new state.
std::vector<std::size_t> GradientReducer::take_news() {
  std::vector<std::size_t> fresh;
  adopts_ = false;
  for (std::size_t position = 0; position < tracked_.size(); ++position) {
    TrackedParameter& tracked = tracked_[position];
    if (waits(tracked)) adopts_ = true;
    if (!tracked.bucketed || tracked.bucket->step() == nullptr) continue;
    const SharedStep::Changes changes = tracked.bucket->step()->shared().take_changes(tracked.slot);
    if (changes.written) mark_written(tracked.parameter);
    const bool adopted = tracked.state && !waits(tracked);
    if (adopted) tracked.state.reset();
    if (changes.fresh || adopted) fresh.push_back(position);
  }
  return fresh;
}

// Returns false if all ranks object and nothing was done. A mismatch throws.
bool GradientReducer::try_step(double gradient_scale, Gradients gradients, double max_norm,
                               bool object) {
  Attempt attempt{
      .scale = gradient_scale, .add_up = gradients == Gradients::kAddUp, .object = object};
  if (attempt.add_up && options_.op == ReduceOp::kAverage) {
    attempt.scale /= static_cast<double>(among_->group->size());
  }
  if (!object) take_for_step();
  if (max_norm > 0.0) {
    run_on_buckets(attempt, &SharedStepOperations::submit_squares, /*squares=*/true);
    if (object) {
      start_step();
      return false;
    }
    take_norm();
    attempt.scale *= clip_coefficient(norm_, max_norm);
  }
  run_on_buckets(attempt, &SharedStepOperations::submit, /*squares=*/false);
  if (object) start_step();
  return !object;
}

void GradientReducer::take_for_step() {
  if (adopts_) {
    std::vector<const TrackedParameter*> waiting;  // all, since the first adoption changes waits()
    for (const TrackedParameter& tracked : tracked_) {
      if (tracked.bucketed && waits(tracked)) waiting.push_back(&tracked);
    }
    for (const TrackedParameter* tracked : waiting) {
      tracked->bucket->step()->shared().adopt(tracked->slot, *tracked->state);
    }
  }
  for (const auto& bucket : buckets_) bucket->take_for_step();
}

// Runs one operation for each bucket, or this rank's objection to it. Blocking.
void GradientReducer::run_on_buckets(const Attempt& attempt,
                                     void (SharedStepOperations::*submit)(SharedStep::Update),
                                     bool squares) {
  std::vector<Handle> handles;
  for (const auto& bucket : buckets_) {
    const auto& [rule, words, words_adding_up] = rules_.at(bucket->rule());
    if (attempt.object) {
      bucket->step()->submit_objection(squares);
    } else {
      (bucket->step()->*submit)(
          {.rule = rule,
           .words = attempt.add_up ? words_adding_up : words,
           .gradient_scale = attempt.scale,
           .reduced = attempt.add_up ? nullptr : bucket->step()->gradients()});
    }
    bucket->append_handles(handles);
  }
  wait_beside_backward([&](const Engine::Look& look) { check(engine_->wait(handles, look)); });
}

// Computes the norm from the squares, which are done.
void GradientReducer::take_norm() {
  double squares = 0.0;
  for (const auto& bucket : buckets_) {
    squares += bucket->step()->shared().sum_of_squares();
    bucket->retire();
  }
  norm_ = std::sqrt(squares);
}

// Returns this rank's objection to a shared step now, as the rest of a sentence; empty if it has
// none.
std::string GradientReducer::objection_now() {
  if (foreign_ > 0) {
    const auto it = std::find_if(tracked_.begin(), tracked_.end(),
                                 [](const TrackedParameter& tracked) { return tracked.foreign; });
    if (it != tracked_.end()) return "another optimizer has parameter '" + it->name + "' too";
  }
  for (const auto& bucket : buckets_) {
    const auto why = bucket->step()->shared().obstacle(rules_.at(bucket->rule()).rule);
    if (why) return *why;
  }
  return "";
}

double GradientReducer::norm() {
  const MutexLock lock(mutex_);
  return norm_;
}

OptimizerState GradientReducer::state(std::size_t position, bool copies) {
  const MutexLock lock(mutex_);
  const TrackedParameter& tracked = tracked_.at(position);
  OptimizerState state;
  if (waits(tracked)) {
    state = *tracked.state;
  } else if (tracked.bucketed && tracked.bucket->step() != nullptr) {
    state = tracked.bucket->step()->shared().state(tracked.slot);
  }
  if (copies) {
    for (auto& [name, value] : state) value = value.clone();
  }
  return state;
}

void GradientReducer::adopt_state(std::size_t position, OptimizerState state) {
  const MutexLock lock(mutex_);
  TrackedParameter& tracked = tracked_.at(position);
  if (tracked.bucketed && tracked.bucket->step()->shared().begun()) {
    tracked.bucket->step()->shared().adopt(tracked.slot, state);
    tracked.state.reset();
  } else {
    tracked.state = std::move(state);
    adopts_ = true;
  }
}

void GradientReducer::end_shared_step() {
  const MutexLock lock(mutex_);
  shared_step_ = false;
  for (const auto& bucket : buckets_) bucket->end_shared_step();
  for (TrackedParameter& tracked : tracked_) tracked.state.reset();
}

}  // namespace ciranda
