#include "ciranda/torch/gradient/shared_step_runner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ciranda/torch/step/optimizer_checks.h"
#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/tensor_view.h"
#include "core/base/assert.h"

namespace ciranda {

SharedStepRunner::SharedStepRunner(std::shared_ptr<Engine> engine,
                                   std::shared_ptr<const Communicator> among,
                                   const ReducerOptions& options, TrackedParameters& parameters,
                                   GradientSync& sync)
    : engine_(std::move(engine)),
      among_(std::move(among)),
      options_(options),
      parameters_(parameters),
      sync_(sync) {}

void SharedStepRunner::set_rule(std::size_t number, const kernels::UpdateRule& rule) {
  if (rules_.size() <= number) rules_.resize(number + 1);
  rules_[number] = {.rule = rule,
                    .words = rule_text(rule),
                    .words_adding_up = rule_text(rule, " of gradients that are not reduced")};
}

StepOutcome SharedStepRunner::step(double gradient_scale, bool reduce, double max_norm,
                                   const std::string& objection) {
  // I16: after end_shared_step() the ranks know that sharing has ended.
  CIRANDA_ASSERT(options_.shared_step && (parameters_.shares_step() || !ended_.empty()));
  StepOutcome outcome;
  try {
    outcome.why_not_shared = step_or_reason(gradient_scale, reduce, max_norm, objection);
  } catch (...) {
    sync_.await_in_flight();
    sync_.start_step();
    throw;
  }
  CIRANDA_ASSERT(ended_.empty() || !outcome.why_not_shared.empty());  // I16: it ends for good
  ended_ = outcome.why_not_shared;
  if (ended_.empty()) {
    for (const auto& bucket : parameters_.buckets()) bucket->step()->count();
    sync_.start_step();
  }
  outcome.fresh = take_news();
  return outcome;
}

void SharedStepRunner::hold_step() {
  for (const auto& bucket : parameters_.buckets()) bucket->step()->hold();
}

// All buckets belong to one step: before the first chunk of any begins, all ranks have entered it
// with the gradients of every bucket, and know the norm.
LostStep SharedStepRunner::lost_step() const {
  const auto& buckets = parameters_.buckets();
  for (const auto& bucket : buckets) bucket->step()->revoke();
  const auto begun = [](const auto& bucket) { return bucket->step()->begun(); };
  if (std::none_of(buckets.begin(), buckets.end(), begun)) return LostStep::kNone;
  const auto possible = [](const auto& bucket) { return bucket->step()->can_complete(); };
  return std::all_of(buckets.begin(), buckets.end(), possible) ? LostStep::kBegun
                                                               : LostStep::kForOthers;
}

void SharedStepRunner::complete_step() {
  for (const auto& bucket : parameters_.buckets()) bucket->step()->complete();
}

void SharedStepRunner::end_completed_step() {
  for (const auto& bucket : parameters_.buckets()) bucket->step()->count_completed();
  take_news();
}

void SharedStepRunner::confirm_sharing() {
  const std::uint64_t joins = engine_->joins();
  if (!options_.shared_step || agreed_joins_ == joins) return;
  std::vector<std::string> texts;
  sync_.wait_beside_backward([&](const Engine::Look& look) {
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
void SharedStepRunner::prepare_for_other_rules() {
  enum Wish { kNone, kOtherState, kThisState };
  Wish mine = kNone;
  for (const auto& bucket : parameters_.buckets()) {
    const SharedStep& step = bucket->step()->shared();
    if (!step.prepared()) continue;  // the bucket may be this rank's alone yet
    const bool other = step.needs_other_state(rules_.at(bucket->rule()).rule);
    mine = std::max(mine, step.begun() ? kThisState : other ? kOtherState : kNone);
  }
  if (sync_.most_of_ranks(mine, "state") != kOtherState) return;
  for (const auto& bucket : parameters_.buckets()) {
    SharedStep& step = bucket->step()->shared();
    if (step.prepared()) step.prepare(rules_.at(bucket->rule()).rule);
  }
}

// Prepares the buckets that are not prepared. Collective.
void SharedStepRunner::prepare_buckets() {
  for (const auto& bucket : parameters_.buckets()) {
    SharedStep& step = bucket->step()->shared();
    if (!step.prepared()) step.prepare(rules_.at(bucket->rule()).rule);
  }
}

// Makes the step. Returns why the ranks do not share it; empty if it is done.
std::string SharedStepRunner::step_or_reason(double gradient_scale, bool reduce, double max_norm,
                                             const std::string& objection) {
  if (!ended_.empty()) {  // this rank learns of it after a join
    if (reduce) sync_.reduce_if_any_rank(sync_.needed());
    return ended_;
  }
  if (asks_for_state_) {
    prepare_for_other_rules();
    asks_for_state_ = false;
  }
  for (bool again = false;; again = true) {
    prepare_buckets();
    const Work work = reduce ? sync_.needed() : Work::kNone;
    const std::string reason = objection.empty() ? objection_now() : objection;
    const bool object = work >= Work::kReduce || !reason.empty();
    try {
      if (try_step(gradient_scale, work, max_norm, object)) return "";
    } catch (const Exception& problem) {
      if (problem.error().code != ErrorCode::kMismatch) throw;
      for (const auto& bucket : parameters_.buckets()) bucket->step()->withdraw();
      if (again) throw;
      sync_.await_in_flight();
      sync_.start_step();
      if (sync_.most_of_ranks(object || work != Work::kNone, "objects") == 0) throw;
    }
    // Some rank objects, so all ranks come here: they did not agree, or every rank objects.
    std::string why = obstacle_of_a_rank(*among_, reason, options_.name + "/why");
    if (!why.empty() && options_.share_parameters) {
      throw Exception({.code = ErrorCode::kInvalidArgument,
                       .text = "DistributedOptimizer: share_parameters needs a shared step, "
                               "which is not possible any more: " +
                               why});
    }
    sync_.reduce_if_any_rank(work);
    if (!why.empty()) return why;
  }
}

// Returns true if the parameter's state is still to be adopted. The ranks of the host have adopted
// it once they have stepped, or have newer state.
bool SharedStepRunner::waits(std::size_t position) {
  if (position >= to_adopt_.size() || !to_adopt_[position]) return false;
  const TrackedParameter& tracked = parameters_.at(position);
  SharedStepOperations* const step = tracked.bucketed ? tracked.bucket->step() : nullptr;
  return step == nullptr || !step->shared().begun();
}

// Takes over what the steps have done since the last call. Returns the positions of parameters that
// have new state.
std::vector<std::size_t> SharedStepRunner::take_news() {
  std::vector<std::size_t> fresh;
  adopts_ = false;
  for (std::size_t position = 0; position < parameters_.size(); ++position) {
    const TrackedParameter& tracked = parameters_.at(position);
    const bool still_waits = waits(position);
    if (still_waits) adopts_ = true;
    if (!tracked.bucketed || tracked.bucket->step() == nullptr) continue;
    const SharedStep::Changes changes = tracked.bucket->step()->shared().take_changes(tracked.slot);
    if (changes.written) mark_written(tracked.parameter);
    const bool adopted =
        position < to_adopt_.size() && to_adopt_[position].has_value() && !still_waits;
    if (adopted) to_adopt_[position].reset();
    if (changes.fresh || adopted) fresh.push_back(position);
  }
  return fresh;
}

// Returns false if all ranks object and nothing was done. A mismatch throws.
bool SharedStepRunner::try_step(double gradient_scale, Work work, double max_norm, bool object) {
  Attempt attempt{.scale = gradient_scale, .add_up = work == Work::kAddUp, .object = object};
  if (attempt.add_up && options_.op == ReduceOp::kAverage) {
    attempt.scale /= static_cast<double>(among_->group->size());
  }
  if (!object) take_for_step();
  if (max_norm > 0.0) {
    run_on_buckets(attempt, &SharedStepOperations::submit_squares, /*squares=*/true);
    if (object) {
      sync_.start_step();
      return false;
    }
    take_norm();
    attempt.scale *= clip_coefficient(norm_, max_norm);
  }
  if (!object) {
    for (const auto& bucket : parameters_.buckets()) bucket->step()->enter();
  }
  run_on_buckets(attempt, &SharedStepOperations::submit, /*squares=*/false);
  if (object) sync_.start_step();
  return !object;
}

void SharedStepRunner::take_for_step() {
  if (adopts_) {
    std::vector<std::size_t> waiting;  // all, since the first adoption changes waits()
    for (std::size_t position = 0; position < to_adopt_.size(); ++position) {
      if (parameters_.at(position).bucketed && waits(position)) waiting.push_back(position);
    }
    for (const std::size_t position : waiting) {
      const TrackedParameter& tracked = parameters_.at(position);
      tracked.bucket->step()->shared().adopt(tracked.slot, *to_adopt_[position]);
    }
  }
  for (const auto& bucket : parameters_.buckets()) bucket->take_for_step();
}

// Runs one operation for each bucket, or this rank's objection to it. Blocking.
void SharedStepRunner::run_on_buckets(const Attempt& attempt, Submit submit, bool squares) {
  std::vector<Handle> handles;
  for (const auto& bucket : parameters_.buckets()) {
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
  sync_.wait_beside_backward(
      [&](const Engine::Look& look) { check(engine_->wait(handles, look)); });
}

// Computes the norm from the squares, which are done.
void SharedStepRunner::take_norm() {
  double squares = 0.0;
  for (const auto& bucket : parameters_.buckets()) {
    squares += bucket->step()->shared().sum_of_squares();
    bucket->retire();
  }
  norm_ = std::sqrt(squares);
}

// Returns this rank's objection to a shared step now, as the rest of a sentence; empty if it has
// none.
std::string SharedStepRunner::objection_now() const {
  if (parameters_.any_foreign()) {
    const auto& all = parameters_.all();
    const auto it = std::find_if(all.begin(), all.end(),
                                 [](const TrackedParameter& tracked) { return tracked.foreign; });
    if (it != all.end()) return "another optimizer has parameter '" + it->name + "' too";
  }
  for (const auto& bucket : parameters_.buckets()) {
    const auto why = bucket->step()->shared().obstacle(rules_.at(bucket->rule()).rule);
    if (why) return *why;
  }
  return "";
}

OptimizerState SharedStepRunner::state(std::size_t position, bool copies) {
  const TrackedParameter& tracked = parameters_.at(position);
  OptimizerState state;
  if (waits(position)) {
    state = *to_adopt_[position];
  } else if (tracked.bucketed && tracked.bucket->step() != nullptr) {
    state = tracked.bucket->step()->shared().state(tracked.slot);
  }
  if (copies) {
    for (auto& [name, value] : state) value = value.clone();
  }
  return state;
}

void SharedStepRunner::adopt_state(std::size_t position, OptimizerState state) {
  const TrackedParameter& tracked = parameters_.at(position);
  if (to_adopt_.size() <= position) to_adopt_.resize(position + 1);
  if (tracked.bucketed && tracked.bucket->step()->shared().begun()) {
    tracked.bucket->step()->shared().adopt(tracked.slot, state);
    to_adopt_[position].reset();
  } else {
    to_adopt_[position] = std::move(state);
    adopts_ = true;
  }
}

void SharedStepRunner::end_shared_step() {
  parameters_.end_shared_step();
  to_adopt_.clear();
  adopts_ = false;
}

}  // namespace ciranda
