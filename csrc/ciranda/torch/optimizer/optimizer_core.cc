#include "ciranda/torch/optimizer/optimizer_core.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <map>
#include <utility>

#include "ciranda/torch/collective/collectives.h"
#include "ciranda/torch/process/default_world.h"
#include "ciranda/torch/step/optimizer_checks.h"
#include "ciranda/torch/tensor/error.h"
#include "core/base/assert.h"
#include "core/base/mutex.h"
#include "core/job/world.h"

namespace ciranda {
namespace {

[[noreturn]] void refuse_option(const std::string& why) {
  throw Exception({.code = ErrorCode::kInvalidArgument, .text = "DistributedOptimizer: " + why});
}

// Counts the optimizers that this process has made over each set of ranks. The count distinguishes
// them: every member makes them in the same order, and sets do not share names.
class MadeOptimizers {
 public:
  int of(const std::shared_ptr<const Group>& members) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    std::erase_if(made_, [](const auto& row) { return row.first.expired(); });
    return made_[members];
  }
  void count(const std::shared_ptr<const Group>& members) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    ++made_[members];
  }

 private:
  Mutex mutex_;
  std::map<std::weak_ptr<const Group>, int, std::owner_less<>> made_ GUARDED_BY(mutex_);
};

MadeOptimizers& made_optimizers() {
  static MadeOptimizers made;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
  return made;
}

// Returns why this rank trains alone; "": others of the group train with it.
std::string why_alone(const Communicator& among) {
  if (!among.group->contains(among.engine->rank())) {
    return "this rank is not a member of the process set";
  }
  return among.group->size() == 1 ? "there is one rank" : "";
}

}  // namespace

OptimizerCore::OptimizerCore(GroupId group, OptimizerOptions options,
                             const NamedParameters& parameters, std::optional<std::string> obstacle)
    : among_(default_communicator(group, "DistributedOptimizer")),
      options_(std::move(options)),
      why_not_shared_(why_alone(*among_)) {
  check_values(options_);
  options_.reduction.group = group;
  if (!why_not_shared_.empty()) {
    among_.reset();
    return;
  }
  agree_and_count(parameters, std::move(obstacle));
  comparison_ =
      std::make_unique<RankComparison>(among_, name_, !options_.reduction.share_parameters);
}

OptimizerCore::~OptimizerCore() = default;

// Makes the reducer too.
void OptimizerCore::agree_and_count(const NamedParameters& parameters,
                                    std::optional<std::string> obstacle) {
  name_ = "DistributedOptimizer." + std::to_string(made_optimizers().of(among_->group));
  const char* const demanded = demanded_by(options_);
  std::string mine;
  if (options_.adasum) {
    mine = "with op=Adasum each rank makes a step of its own";
  } else if (options_.shared_step == SharedStepMode::kOff) {
    mine = "shared_step is off";
  } else if (in_elastic_job_of_hosts()) {
    mine = "in an elastic job on several hosts each rank makes the whole step";
  } else {
    mine = obstacle_to_sharing(demanded != nullptr, std::move(obstacle), parameters,
                               options_.auto_parameters_min);
  }
  why_not_shared_ = require_agreement(*among_, name_, describe(options_), parameters, mine);
  if (!shares_step() && demanded != nullptr) {
    refuse_option(std::string(demanded) + " is not possible: " + why_not_shared_);
  }
  // Counted only after the collective call: it throws on this rank alone if other ranks had joined,
  // and they did not count.
  made_optimizers().count(among_->group);
  if (options_.adasum || !options_.reduces) return;
  ReducerOptions reduction = options_.reduction;
  reduction.name = name_;
  reduction.shared_step = shares_step();
  reduction.journaled = elastic_member() != nullptr;
  reduction.sparse_as_dense = reduction.sparse_as_dense || shares_step();
  reduction.reduce_in_backward = options_.shared_step != SharedStepMode::kHost;
  reducer_ = make_gradient_reducer(std::move(reduction));
}

void OptimizerCore::add_parameters(NamedParameters parameters, std::vector<std::size_t> groups) {
  CIRANDA_ASSERT(groups.size() == parameters.size());
  parameters_.insert(parameters_.end(), parameters.begin(), parameters.end());
  groups_.insert(groups_.end(), groups.begin(), groups.end());
  if (reducer_ != nullptr) {
    reducer_->add_parameters(parameters,
                             shares_step() ? std::move(groups) : std::vector<std::size_t>());
  }
  if (comparison_ != nullptr) comparison_->add(std::move(parameters));  // they may have moved
}

std::string OptimizerCore::agree_on(const NamedParameters& added) {
  if (alone()) return "";
  const std::string why = require_agreement(*among_, name_, "", added, why_not_shared_);
  return shares_step() ? why : "";
}

// -------------------------------------------------------------------------------------------
// Gradients

void OptimizerCore::set_backward_passes_per_step(int passes) {
  if (passes < 1) refuse_option("backward_passes_per_step must be at least 1");
  options_.reduction.backward_passes_per_step = passes;
  if (reducer_ != nullptr) reducer_->set_backward_passes_per_step(passes);
}

void OptimizerCore::synchronize() {
  if (reducer_ != nullptr) reducer_->synchronize();
}

void OptimizerCore::discard_step() {
  if (reducer_ != nullptr) reducer_->discard_step();
}

void OptimizerCore::finish_step() {
  if (reducer_ != nullptr) reducer_->finish_step();
}

// -------------------------------------------------------------------------------------------
// A step

bool OptimizerCore::begin_step() {
  if (reducer_ != nullptr) reducer_->confirm_sharing();
  return comparison_ != nullptr && comparison_->begin_step();
}

std::string OptimizerCore::compare(const std::string& way) {
  CIRANDA_ASSERT(comparison_ != nullptr);  // begin_step() has asked for it
  return comparison_->compare(way, reducer_.get());
}

at::Tensor OptimizerCore::clip(const std::vector<at::Tensor>& gradients,
                               const at::Tensor& scale) const {
  if (!options_.max_grad_norm || gradients.empty()) return {};
  const at::NoGradGuard no_grad;
  // Computes what torch's clip_grad_norm_ does, without its wait for the GPU at the end.
  at::Tensor norm = at::stack(at::_foreach_norm(gradients)).norm();
  if (scale.defined()) norm = norm / scale;
  at::_foreach_mul_(gradients, (*options_.max_grad_norm / (norm + 1e-6)).clamp_max(1.0));
  return norm;
}

at::Tensor OptimizerCore::loss_of_all(const at::Tensor& loss) const {
  if (alone()) return loss;
  const at::Tensor reduced = loss.detach().clone();
  allreduce(*among_, reduced, reduced, {.name = name_ + "/loss", .op = options_.reduction.op});
  return reduced;
}

std::vector<at::Tensor> OptimizerCore::take_changes(const std::vector<at::Tensor>& parameters,
                                                    const std::vector<at::Tensor>& starts) {
  CIRANDA_ASSERT(parameters.size() == starts.size());
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> changes;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    changes.push_back((parameters[i] - starts[i]).contiguous());
    parameters[i].copy_(starts[i]);
  }
  return changes;
}

std::vector<at::Tensor> OptimizerCore::combine(const std::vector<at::Tensor>& changes) const {
  if (alone() || changes.empty()) return changes;
  return allreduce_async(*among_, changes, changes,
                         {.name = name_ + "/changes", .op = ReduceOp::kAdasum})
      ->wait()
      .tensors;
}

void OptimizerCore::broadcast_buffers(const std::vector<at::Tensor>& buffers) const {
  if (alone() || buffers.empty()) return;
  broadcast_tensors(*among_, buffers, among_->group->ranks.front(), name_ + "/buffers");
}

bool OptimizerCore::end_step(bool objects) {
  if (comparison_ != nullptr) comparison_->end_step();
  if (tuner_ == nullptr) return false;
  wanted_ = tuner_->stepped(objects && shares_step());
  if (!wanted_) return false;
  own_steps_were_faster_ = tuner_->chose_own_steps();
  if (tuner_->ended()) tuner_.reset();
  // What the user's program has done since the optimizer was made stays.
  wanted_->reduction.backward_passes_per_step = options_.reduction.backward_passes_per_step;
  if (!why_sharing_ended_.empty()) wanted_->shared_step = SharedStepMode::kOff;
  if (*wanted_ == options_) {
    wanted_.reset();
    say_why_not_shared();
  }
  return wanted_.has_value();
}

// Replaces the reason "shared_step is off" by the reason why autotuning has set it.
void OptimizerCore::say_why_not_shared() {
  if (shares_step()) return;
  if (!why_sharing_ended_.empty()) {
    why_not_shared_ = why_sharing_ended_;
  } else if (own_steps_were_faster_) {
    why_not_shared_ = "autotuning found a step of each rank faster";
  }
}

// -------------------------------------------------------------------------------------------
// A shared step

void OptimizerCore::set_rule(std::size_t group, const kernels::UpdateRule& rule) {
  CIRANDA_ASSERT(shares_step() && reducer_ != nullptr);
  if (group < rules_.size() && rules_[group] == rule) return;
  reducer_->set_rule(group, rule);
  rules_.resize(std::max(rules_.size(), group + 1));
  rules_[group] = rule;
}

StepOutcome OptimizerCore::step(double gradient_scale, bool reduce, const std::string& objection) {
  CIRANDA_ASSERT(shares_step() && reducer_ != nullptr);
  return reducer_->step(gradient_scale, reduce, options_.max_grad_norm.value_or(0.0), objection);
}

void OptimizerCore::hold_step() {
  if (shares_step() && reducer_ != nullptr) reducer_->hold_step();
}

LostStep OptimizerCore::lost_step() {
  return shares_step() && reducer_ != nullptr ? reducer_->lost_step() : LostStep::kNone;
}

void OptimizerCore::complete_step() {
  CIRANDA_ASSERT(shares_step() && reducer_ != nullptr);
  reducer_->complete_step();
}

void OptimizerCore::end_completed_step() {
  CIRANDA_ASSERT(shares_step() && reducer_ != nullptr);
  reducer_->end_completed_step();
}

double OptimizerCore::norm() {
  CIRANDA_ASSERT(reducer_ != nullptr);
  return reducer_->norm();
}

OptimizerState OptimizerCore::state(std::size_t position, bool copies) {
  CIRANDA_ASSERT(reducer_ != nullptr);
  return reducer_->state(position, copies);
}

void OptimizerCore::adopt_state(std::size_t position, OptimizerState state) {
  CIRANDA_ASSERT(shares_step() && reducer_ != nullptr);
  reducer_->adopt_state(position, std::move(state));
}

void OptimizerCore::end_shared_step(std::string why) {
  CIRANDA_ASSERT(shares_step() && reducer_ != nullptr && !why.empty());  // I16: some rank objected
  why_not_shared_ = std::move(why);
  why_sharing_ended_ = why_not_shared_;
  reducer_->end_shared_step();
}

std::size_t OptimizerCore::arena_bytes() {
  return reducer_ == nullptr ? 0 : reducer_->arena_bytes();
}

std::uint64_t OptimizerCore::moved_bytes() {
  return reducer_ == nullptr ? 0 : reducer_->moved_bytes();
}

std::size_t OptimizerCore::bucket_count() {
  return reducer_ == nullptr ? 0 : reducer_->bucket_count();
}

// -------------------------------------------------------------------------------------------
// Autotuning

void OptimizerCore::tune(const std::string& class_name, Tuner::Clock clock) {
  const Config& config = default_world()->config();
  const bool first = !alone() && options_.reduction.group == kWorldGroup &&
                     made_optimizers().of(among_->group) == 1;
  if (!config.autotune.on || !first || options_.adasum) return;
  Tuner::Subject subject{
      .class_name = class_name, .parameters = parameters_.size(), .shares_step = shares_step()};
  for (const auto& [name, parameter] : parameters_) {
    subject.gradient_bytes += static_cast<std::int64_t>(parameter.nbytes());
    if (parameter.is_cuda()) subject.gpu = parameter.device();
  }
  tuner_ = std::make_unique<Tuner>(among_, config.autotune,
                                   static_cast<std::uint8_t>(config.engine.ring.grain.channels),
                                   options_, subject, std::move(clock));
}

void OptimizerCore::retune(std::vector<OptimizerState> states,
                           std::optional<std::string> obstacle) {
  CIRANDA_ASSERT(wanted_ && reducer_ != nullptr && states.size() == parameters_.size());
  if (shares_step()) reducer_->end_shared_step();
  reducer_ = nullptr;  // frees its memory, and gives the gradients back
  options_ = *std::exchange(wanted_, std::nullopt);
  agree_and_count(parameters_, std::move(obstacle));
  for (std::size_t group = 0; shares_step() && group < rules_.size(); ++group) {
    reducer_->set_rule(group, rules_[group]);
  }
  reducer_->add_parameters(parameters_, shares_step() ? groups_ : std::vector<std::size_t>());
  for (std::size_t position = 0; shares_step() && position < states.size(); ++position) {
    reducer_->adopt_state(position, std::move(states[position]));
  }
  say_why_not_shared();
}

}  // namespace ciranda
