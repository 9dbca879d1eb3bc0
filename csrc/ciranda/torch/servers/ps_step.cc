#include "ciranda/torch/servers/ps_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <utility>

#include "ciranda/torch/servers/saved_parameters.h"
#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/tensor_view.h"
#include "core/base/assert.h"
#include "core/kernels/reduce.h"

namespace ciranda {

PsStep::PsStep(std::shared_ptr<ps::Client> client, Options options)
    : client_(std::move(client)),
      options_(options),
      parameters_(client_, options.mode, options.ahead || options.push_every > 0) {
  check_mode(options.mode, client_->workers());
}

void PsStep::add_parameters(NamedParameters parameters, std::vector<std::size_t> rules) {
  const MutexLock lock(mutex_);
  refuse_second_model(*client_);
  if (!options_.force) check_momentum(options_.mode, client_->workers(), rules_);
  parameters_.declare(std::move(parameters), rules, rules_);
  kept_ = rules_;
  comes_and_goes_.assign(rules_.size(), false);
  gradients_.resize(parameters_.slots().size());
  for (std::size_t i = 0; i < gradients_.size(); ++i) make_gradient(i);
  fetched_.resize(parameters_.tables());
}

void PsStep::make_gradient(std::size_t index) {
  const ServedParameters::Slot& slot = parameters_.slots()[index];
  const at::Tensor& parameter = slot.parameter;
  Gradient& gradient = gradients_[index];
  if (options_.ahead || strays() || !parameter.is_cpu() || !parameter.is_contiguous() ||
      parameter.numel() == 0) {
    lay_out(index);
    return;
  }
  gradient.memory = std::make_unique<Memory>(*this, index);
  std::vector<GradientBuffer::Member> members{{.name = slot.name, .parameter = parameter}};
  if (parameter.requires_grad()) {
    members[0].accumulator = torch::autograd::impl::grad_accumulator(parameter);
  }
  gradient.buffer = std::make_unique<GradientBuffer>(std::move(members), /*sparse_as_dense=*/true,
                                                     *gradient.memory);
}

// Called by a GradientBuffer during a call of PsStep.
at::Tensor PsStep::Memory::lay_out(std::int64_t elements,
                                   const std::vector<std::vector<std::int64_t>>&) {
  const at::Tensor served = reducer_.lay_out(index_);
  // `elements` may go beyond the gradient: the slot owns its cache lines to their end.
  return at::from_blob(
      served.mutable_data_ptr(), {elements}, [served](void*) {}, served.options());
}

// Lays out a gradient. If that has been done since the latest move, all gradients get fresh memory.
at::Tensor PsStep::lay_out(std::size_t index) {
  Gradient& gradient = gradients_[index];
  if (gradient.moves == moves_) {
    parameters_.move_gradients();
    ++moves_;
  }
  gradient.moves = moves_;
  gradient.served = parameters_.gradient_memory(parameters_.slots()[index]);
  return gradient.served;
}

// Lays out the gradients that have not followed the latest move yet.
void PsStep::follow_moves() {
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    Gradient& gradient = gradients_[i];
    if (gradient.moves == moves_) continue;
    if (gradient.buffer) {
      gradient.buffer->move_away();
    } else {
      const at::Tensor before = gradient.served;
      lay_out(i).copy_(before);
    }
    CIRANDA_ASSERT(gradient.moves == moves_);
  }
}

void PsStep::set_rule(std::size_t number, const kernels::UpdateRule& rule) {
  const MutexLock lock(mutex_);
  if (rules_.size() <= number) rules_.resize(number + 1);
  if (rules_[number] == rule) return;
  if (number < kept_.size()) keep_state(number, rule);
  rules_[number] = rule;
  pushed_rules_.clear();
}

void PsStep::step(double gradient_scale, double max_norm, const std::string& objection) {
  const MutexLock lock(mutex_);
  if (!objection.empty()) {
    throw Exception(
        {.code = ErrorCode::kInvalidArgument,
         .text = "DistributedOptimizer: the servers cannot make the step, because " + objection});
  }
  parameters_.refuse_changes();
  if (strays()) {
    stray(gradient_scale, max_norm);
    return;
  }
  const std::vector<std::uint64_t> made_from(parameters_.versions().begin(),
                                             parameters_.versions().end());
  if (unanswered_) await_answer();
  std::vector<bool> used = take_gradients();
  double scale = gradient_scale;
  if (max_norm > 0.0) {
    norm_ = norm_of(used, scale);
    scale *= clip_coefficient(norm_, max_norm);
  }
  if (options_.mode.kind == ps::ModeKind::kSync && scale != 1.0) {
    scale_gradients(used, std::exchange(scale, 1.0));
  }
  for (auto& arrays : fetched_) arrays.clear();
  fetched_steps_.reset();
  check(push(made_from, scale, std::move(used)));
  unanswered_ = true;
  if (!options_.ahead) await_answer();
}

void PsStep::await_answer() {
  CIRANDA_ASSERT(unanswered_);
  unwrap(client_->parameters().answer());
  unanswered_ = false;
  parameters_.show();
  for (Gradient& gradient : gradients_) {
    if (gradient.buffer) gradient.buffer->reset();
  }
}

// Puts the gradients where the servers read them, and returns which slots have one. No gradient is
// born there until the answer.
std::vector<bool> PsStep::take_gradients() {
  const std::vector<ServedParameters::Slot>& slots = parameters_.slots();
  CIRANDA_ASSERT(gradients_.size() == slots.size());
  std::vector<bool> used(slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    Gradient& gradient = gradients_[i];
    const at::Tensor& parameter = slots[i].parameter;
    if (gradient.buffer) {
      GradientBuffer& buffer = *gradient.buffer;
      buffer.take_new_gradients();
      buffer.open_places(false);
      if (buffer.had_strays() && !buffer.knows_accumulator(0)) {
        buffer.attach(0, torch::autograd::impl::grad_accumulator(parameter));
      }
      used[slots[i].position] = buffer.slots()[0].used;
    } else if (parameter.grad().defined()) {
      assign(gradient.served, parameter.grad().layout() == c10::Layout::Strided
                                  ? parameter.grad()
                                  : parameter.grad().to_dense());
      used[slots[i].position] = true;
    } else {
      gradient.served.zero_();  // in a round another worker may have one
    }
  }
  follow_moves();
  return used;
}

double PsStep::norm_of(const std::vector<bool>& used, double scale) const {
  double squares = other_squares_;
  const auto& slots = parameters_.slots();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (!used[slots[i].position]) continue;
    const at::Tensor& gradient = gradients_[i].served;
    const std::byte* const data = data_of(gradient);
    squares += kernels::sum_of_squares(dtype_of(gradient.scalar_type(), slots[i].name), {&data, 1},
                                       scale, static_cast<std::size_t>(gradient.numel()));
  }
  return std::sqrt(squares);
}

// Scales the gradients in place, since each worker of a round has its own scale.
void PsStep::scale_gradients(const std::vector<bool>& used, double scale) {
  const auto& slots = parameters_.slots();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (!used[slots[i].position]) continue;
    at::Tensor gradient = gradients_[i].served;
    gradient.mul_(scale);
    const at::Tensor& users = slots[i].parameter.grad();
    if (users.has_storage() && users.const_data_ptr() == gradient.const_data_ptr())
      mark_written(users);
  }
}

void PsStep::add_squares(double squares) {
  const MutexLock lock(mutex_);
  other_squares_ = squares;
}

double PsStep::norm() {
  const MutexLock lock(mutex_);
  return norm_;
}

void PsStep::pull() {
  const MutexLock lock(mutex_);
  parameters_.refuse_changes();
  if (strays()) push_accrued();
  if (unanswered_) await_answer();
  check(client_->parameters().pull());
  parameters_.show();
  unfetched_ = 0;
}

void PsStep::end_task() {
  const MutexLock lock(mutex_);
  if (strays()) push_accrued();
}

Status PsStep::push(std::span<const std::uint64_t> made_from, double scale,
                    std::vector<bool> used) {
  if (pushed_rules_.empty()) collect_rules();
  return client_->parameters().push(made_from, scale, pushed_rules_, std::move(used),
                                    ps::kParametersVector, pushed_rule_slots_);
}

// Neighbouring runs with equal rules send one rule.
void PsStep::collect_rules() {
  pushed_rule_slots_.clear();
  std::size_t table = parameters_.tables();
  for (const ServedParameters::Run& run : parameters_.runs()) {
    const kernels::UpdateRule& rule = rules_.at(run.group);
    if (table == run.table && pushed_rules_.back() == rule) {
      pushed_rule_slots_.back() += run.slots;
      continue;
    }
    table = run.table;
    pushed_rules_.push_back(rule);
    pushed_rule_slots_.push_back(run.slots);
  }
  CIRANDA_ASSERT(pushed_rules_.size() == pushed_rule_slots_.size());
  if (pushed_rules_.size() > ps::kRulesMax) {
    const std::size_t count = std::exchange(pushed_rules_, {}).size();
    throw Exception({.code = ErrorCode::kUnsupported,
                     .text = c10::str("DistributedOptimizer: ", count,
                                      " neighbouring parameter groups have different options, but "
                                      "a push can describe at most ",
                                      ps::kRulesMax, "; use fewer parameter groups")});
  }
  if (pushed_rules_.size() == parameters_.tables()) pushed_rule_slots_.clear();
}

namespace {

[[noreturn]] void refuse_state(const char* option) {
  throw Exception(
      {.code = ErrorCode::kUnsupported,
       .text = c10::str("DistributedOptimizer: ", option,
                        " was changed after DistributedOptimizer was made, and servers have no "
                        "state for it; change it before the optimizer is made")});
}

}  // namespace

// Notes that a group's rule changes. Throws if the servers have no state for the new rule. SGD's
// momentum may begin at any time: without dampening a buffer of zeros becomes the gradient in the
// first step, as torch's first buffer does.
void PsStep::keep_state(std::size_t group, const kernels::UpdateRule& rule) {
  CIRANDA_ASSERT(group < kept_.size() && kept_.size() == comes_and_goes_.size());
  kernels::UpdateRule& kept = kept_[group];
  if (rule.kind != kept.kind) refuse_state("decoupled_weight_decay");
  if (rule.amsgrad && !kept.amsgrad) refuse_state("amsgrad");
  if (rule.centered && !kept.centered) refuse_state("centered");
  const bool begins = rule.momentum != 0.0 && rules_[group].momentum == 0.0;
  if (rule.kind == kernels::RuleKind::kRmsprop && begins && kept.momentum == 0.0) {
    refuse_state("momentum");
  }
  if (rule.kind != kernels::RuleKind::kSgd) return;
  if (begins && rule.dampening != 0.0) refuse_state("momentum with dampening");
  if ((rule.momentum == 0.0) != (rules_[group].momentum == 0.0)) comes_and_goes_[group] = true;
  if (begins && kept.momentum == 0.0) kept.momentum = rule.momentum;
}

// -------------------------------------------------------------------------------------------
// Downpour (Dean et al. 2012, algorithm 7.1)

void PsStep::stray(double scale, double max_norm) {
  const at::NoGradGuard no_grad;
  const auto& slots = parameters_.slots();
  // The servers read `served` until they have answered.
  if (std::exchange(unanswered_, false)) unwrap(client_->parameters().answer());
  if (unpushed_ == 0) {
    for (Gradient& gradient : gradients_) gradient.served.zero_();
    accrued_.assign(slots.size(), false);
  }
  std::vector<at::Tensor> own(slots.size());
  double squares = other_squares_;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const at::Tensor& gradient = slots[i].parameter.grad();
    if (!gradient.defined()) continue;
    own[i] = gradient.layout() == c10::Layout::Strided ? gradient : gradient.to_dense();
    if (max_norm > 0.0) squares += std::pow(own[i].norm(2, at::kDouble).item<double>() * scale, 2);
  }
  if (max_norm > 0.0) {
    norm_ = std::sqrt(squares);
    scale *= clip_coefficient(norm_, max_norm);
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (!own[i].defined()) continue;
    const kernels::UpdateRule& rule = rules_.at(slots[i].group);
    gradients_[i].served.add_(own[i].is_cpu() ? own[i] : own[i].cpu(), scale);
    accrued_[slots[i].position] = true;
    slots[i].parameter.detach().sub_(own[i], (rule.maximize ? -scale : scale) * rule.lr);
  }
  parameters_.keep();
  ++unpushed_;
  ++unfetched_;
  if (unpushed_ >= options_.push_every) push_accrued();
  if (unfetched_ >= options_.fetch_every) fetch();
}

void PsStep::push_accrued() {
  if (std::exchange(unpushed_, 0) == 0) return;
  for (auto& arrays : fetched_) arrays.clear();
  fetched_steps_.reset();
  check(push(parameters_.versions(), 1.0, accrued_));
  unanswered_ = true;
}

// Shows the newest parameters: those that the answer to the latest push brings, or, if it was
// answered before, those that a pull brings.
void PsStep::fetch() {
  if (std::exchange(unanswered_, false)) {
    unwrap(client_->parameters().answer());
  } else {
    check(client_->parameters().pull());
  }
  parameters_.show();
  unfetched_ = 0;
}

// -------------------------------------------------------------------------------------------
// State

const MemorySegment& PsStep::state_array(std::size_t table, std::size_t array) {
  auto& arrays = fetched_[table];
  if (arrays.size() <= array) arrays.resize(array + 1);
  if (!arrays[array]) arrays[array] = unwrap(client_->parameters().fetch_state(table, array));
  return *arrays[array];
}

OptimizerState PsStep::state(std::size_t position) {
  const MutexLock lock(mutex_);
  if (unanswered_) {
    if (strays()) {
      unwrap(client_->parameters().answer());
      unanswered_ = false;
    } else {
      await_answer();
    }
  }
  const ServedParameters::Slot& slot = parameters_.slots().at(position);
  if (!fetched_steps_) fetched_steps_ = unwrap(client_->parameters().fetch_steps());
  const std::int64_t step =
      reinterpret_cast<const std::int64_t*>(fetched_steps_->data())[slot.position];
  const kernels::UpdateRule& rule = kept_[slot.group];
  const std::int64_t begin = client_->parameters().layout().slots(slot.table)[slot.number].begin;
  OptimizerState state = state_of(rule, step, [&](std::size_t array) {
    const at::Tensor& lies = slot.value;
    std::byte* const data =
        state_array(slot.table, array).data() + static_cast<std::size_t>(begin) * lies.itemsize();
    return at::from_blob(data, lies.sizes(), lies.options()).clone();
  });
  // A buffer of zeros: no step of the parameter had momentum yet. Torch then has no buffer, and
  // begins with the gradient in either case.
  if (comes_and_goes_[slot.group] && !state.empty() && !state.front().second.any().item<bool>()) {
    return {};
  }
  return state;
}

void PsStep::adopt_state(std::size_t, OptimizerState state) {
  if (state.empty()) return;
  // Torch's Adagrad has state before its first step.
  const auto& [name, value] = state.front();
  if (name == "step" && value.item().toDouble() == 0.0) return;
  throw Exception({.code = ErrorCode::kUnsupported,
                   .text = "DistributedOptimizer: parameter servers cannot take over an "
                           "optimizer's state yet; make a new optimizer, or train with the ring"});
}

std::shared_ptr<PsStep> make_ps_step(PsStep::Options options) {
  auto step = std::make_shared<PsStep>(worker_of_servers("DistributedOptimizer"), options);
  set_puller(step);
  return step;
}

}  // namespace ciranda
