#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <c10/util/Type.h>
#include <ciranda/torch.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <memory>
#include <vector>

#include "ciranda/torch/collective/collectives.h"
#include "ciranda/torch/collective/reduce_op.h"
#include "ciranda/torch/gradient/gradient_reducer.h"
#include "ciranda/torch/gradient/rank_comparison.h"
#include "ciranda/torch/gradient/rank_graph.h"
#include "ciranda/torch/process/default_world.h"
#include "ciranda/torch/process/servers.h"
#include "ciranda/torch/step/distributed_step.h"
#include "ciranda/torch/step/known_optimizers.h"
#include "ciranda/torch/step/optimizer_checks.h"
#include "ciranda/torch/tensor/error.h"
#include "core/base/assert.h"
#include "core/base/mutex.h"
#include "core/job/job.h"

namespace ciranda {
namespace {

// Counts the optimizers that this process has made over each set of ranks. The count distinguishes
// them: every member makes them in the same order, and sets do not share names.
class MadeOptimizers {
 public:
  std::string next_name(const std::shared_ptr<const Group>& members) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    std::erase_if(made_, [](const auto& row) { return row.first.expired(); });
    return "DistributedOptimizer." + std::to_string(made_[members]);
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

// Returns the ranks that train together. Throws kInvalidArgument if this rank is not one of them.
std::shared_ptr<const Communicator> trainers_of(const ProcessSet& process_set) {
  const Engine& engine = *default_world()->engine();
  auto among = default_communicator(unwrap(number_of(process_set, engine)), "DistributedOptimizer");
  if (among->group->contains(engine.rank())) return among;
  throw Exception({.code = ErrorCode::kInvalidArgument,
                   .text = c10::str("DistributedOptimizer: rank ", engine.rank(),
                                    " is not a member of process set ", among->group->id,
                                    "; make the optimizer only on members of the set")});
}

// Returns the shortest text that reads back as the same number.
std::string exact(double value) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.begin(), text.end(), value).ptr};
}

// Describes the options for the error of ranks that differ in them.
std::string describe(const DistributedOptions& options) {
  const char* const kSharedStepModes[] = {"kOff", "kAuto", "kHost"};
  const char* const kCompressions[] = {"kNone", "kFloat16", "kBFloat16"};
  const auto index = [](auto option) { return static_cast<std::size_t>(option); };
  return c10::str("shared_step=", kSharedStepModes[index(options.shared_step)],
                  ", max_grad_norm=", exact(options.max_grad_norm.value_or(0.0)),
                  ", op=", options.op == Op::kSum ? "kSum" : "kAverage",
                  ", gradient_predivide_factor=", exact(options.gradient_predivide_factor),
                  ", backward_passes_per_step=", options.backward_passes_per_step,
                  ", compression=", kCompressions[index(options.compression)],
                  ", sparse_as_dense=", options.sparse_as_dense,
                  ", bucket_bytes=", options.bucket_bytes.value_or(0),
                  ", share_parameters=", options.share_parameters);
}

// Returns the option that demands a shared step; null if a shared step is only a wish.
const char* demanded_by(const DistributedOptions& options) {
  if (options.shared_step == SharedStepMode::kHost) return "shared_step='host'";
  return options.share_parameters ? "share_parameters=true" : nullptr;
}

// The step of ranks of a World, which reduce gradients among themselves.
class RankStep final : public DistributedStep::Impl {
 public:
  using Closure = DistributedStep::Closure;
  using InnerStep = DistributedStep::InnerStep;

  RankStep(torch::optim::Optimizer& optimizer, const std::type_info& type,
           const NamedParameters& named_parameters, const DistributedOptions& options);

  void synchronize() override {
    if (reducer_) reducer_->synchronize();
  }
  void forget_gradients() override {
    if (reducer_) reducer_->discard_step();
  }
  torch::Tensor step(const Closure& closure, const InnerStep& inner) override;
  void adopt_param_group() override;
  void adopt_state() override { adopt_state(0); }
  void save(const std::function<void()>& inner) override { inner(); }

  double grad_norm() const override {
    return grad_norm_.defined() ? grad_norm_.item<double>() : 0.0;
  }
  const std::string& why_not_shared() const override { return why_not_shared_; }

 private:
  bool shared() const { return why_not_shared_.empty(); }
  std::string obstacle(const std::type_info& type, const NamedParameters& parameters,
                       const DistributedOptions& options) const;
  void add_parameters(const NamedParameters& parameters);
  void adopt_state(std::size_t first);
  torch::Tensor inner_step(const Closure& closure, const InnerStep& inner);
  torch::Tensor shared_step(const Closure& closure, const InnerStep& inner);
  std::string objection() const;
  void end_shared_step(const std::string& why);
  torch::Tensor closure_of_a_new_step(const Closure& closure);
  std::string way() const;
  void finish_step() {
    if (reducer_) reducer_->finish_step();
  }
  void clip();
  void set_rules();
  void install_state(std::size_t position);
  void install_step_counts();

  torch::optim::Optimizer& optimizer_;
  const KnownOptimizer* const known_;  // null: the ranks cannot share its step
  const std::shared_ptr<const Communicator> among_;
  const std::string name_;
  const Op op_;
  const double max_norm_;                       // 0: no clipping
  std::string why_not_shared_;                  // empty: the ranks share the step
  std::shared_ptr<Reducer> reducer_;            // null where there is one rank
  std::unique_ptr<RankComparison> comparison_;  // null where there is one rank
  at::Tensor grad_norm_;  // on the gradients' device; undefined where nothing was clipped

  // State of a shared step.
  std::vector<kernels::UpdateRule> rules_;  // by parameter group
  struct InstalledState {
    at::Tensor parameter;
    at::Tensor step_count;  // in shared memory; undefined before the first step, and for SGD
    const torch::optim::OptimizerParamState* state = nullptr;  // as put into the optimizer
  };
  std::vector<InstalledState> installed_;  // by position in the reducer
  std::vector<at::Tensor> grouped_;        // the parameters of every parameter group
};

RankStep::RankStep(torch::optim::Optimizer& optimizer, const std::type_info& type,
                   const NamedParameters& named_parameters, const DistributedOptions& options)
    : optimizer_(optimizer),
      known_(find_known_optimizer(type)),
      among_(trainers_of(options.process_set)),
      name_(made_optimizers().next_name(among_->group)),
      op_(options.op),
      max_norm_(options.max_grad_norm.value_or(0.0)) {
  check_options(reduce_op(op_), options.gradient_predivide_factor, options.backward_passes_per_step,
                options.bucket_bytes, options.max_grad_norm);
  const NamedParameters parameters = names_of(parameters_of(optimizer_), named_parameters);
  if (among_->group->size() == 1) {
    why_not_shared_ = "there is one rank";
    return;
  }
  why_not_shared_ = require_agreement(*among_, name_, describe(options), parameters,
                                      obstacle(type, parameters, options));
  if (!shared() && demanded_by(options) != nullptr) {
    throw Exception({.code = ErrorCode::kInvalidArgument,
                     .text = c10::str("DistributedOptimizer: ", demanded_by(options),
                                      " is not possible: ", why_not_shared_)});
  }
  // Counted only after the collective call: it throws on this rank alone if other ranks had joined,
  // and they did not count.
  made_optimizers().count(among_->group);
  reducer_ =
      make_gradient_reducer({.name = name_,
                             .group = among_->group->id,
                             .op = reduce_op(op_),
                             .predivide_factor = options.gradient_predivide_factor,
                             .backward_passes_per_step = options.backward_passes_per_step,
                             .wire_dtype = wire_dtype_of(options.compression),
                             .sparse_as_dense = options.sparse_as_dense || shared(),
                             .bucket_bytes = options.bucket_bytes,
                             .shared_step = shared(),
                             .reduce_in_backward = options.shared_step != SharedStepMode::kHost,
                             .share_parameters = options.share_parameters});
  comparison_ = std::make_unique<RankComparison>(among_, name_, !options.share_parameters);
  add_parameters(parameters);
}

// Returns this rank's objection to sharing the step, as the rest of a sentence; empty if none.
std::string RankStep::obstacle(const std::type_info& type, const NamedParameters& parameters,
                               const DistributedOptions& options) const {
  if (options.shared_step == SharedStepMode::kOff) {
    if (options.share_parameters) {
      throw Exception({.code = ErrorCode::kInvalidArgument,
                       .text = "DistributedOptimizer: share_parameters needs a shared step; use "
                               "SharedStepMode::kAuto or kHost"});
    }
    return "shared_step is kOff";
  }
  std::optional<std::string> unknown;
  if (known_ == nullptr) {
    unknown = c10::demangle(type.name()) + " is not one of SGD, Adam, AdamW, Adagrad, RMSprop";
  }
  return obstacle_to_sharing(demanded_by(options) != nullptr, unknown, parameters,
                             kAutoParametersMin);
}

void RankStep::add_parameters(const NamedParameters& parameters) {
  if (!shared()) {
    reducer_->add_parameters(parameters, {});
  } else {
    const std::size_t first = installed_.size();
    for (const auto& [name, parameter] : parameters) installed_.push_back({.parameter = parameter});
    grouped_ = parameters_of(optimizer_);
    set_rules();
    reducer_->add_parameters(parameters, groups_of(optimizer_, parameters));
    adopt_state(first);
  }
  comparison_->add(parameters);  // after they have moved, if they move
}

void RankStep::adopt_param_group() {
  if (!reducer_) return;
  const std::size_t group = optimizer_.param_groups().size() - 1;
  NamedParameters added;
  for (const at::Tensor& parameter : optimizer_.param_groups()[group].params()) {
    added.emplace_back(c10::str("group.", group, ".param.", added.size()), parameter);
  }
  const std::string why = require_agreement(*among_, name_, "", added, why_not_shared_);
  if (shared() && !why.empty()) end_shared_step(why);  // it ended while this rank had joined
  add_parameters(added);
}

// -------------------------------------------------------------------------------------------
// A step

torch::Tensor RankStep::step(const Closure& closure, const InnerStep& inner) {
  if (reducer_) {
    reducer_->confirm_sharing();
    if (comparison_->begin_step()) {
      const std::string difference = comparison_->compare(way(), reducer_.get());
      if (!difference.empty()) TORCH_WARN("DistributedOptimizer: ", difference);
    }
  }
  torch::Tensor loss = shared() ? shared_step(closure, inner) : inner_step(closure, inner);
  finish_step();
  if (comparison_) comparison_->end_step();
  return loss;
}

// Describes how this rank steps: by the rules of a known optimizer, else by the optimizer's class.
std::string RankStep::way() const {
  if (known_ == nullptr) return c10::demangle(typeid(optimizer_).name());
  std::string text;
  for (const auto& group : optimizer_.param_groups()) {
    text += (text.empty() ? "" : "; ") + rule_text(known_->rule(group.options()));
  }
  return text;
}

torch::Tensor RankStep::closure_of_a_new_step(const Closure& closure) {
  finish_step();  // the closure computes new gradients
  const at::AutoGradMode enabled(true);
  return closure();
}

torch::Tensor RankStep::inner_step(const Closure& closure, const InnerStep& inner) {
  if (closure == nullptr) {
    synchronize();
    clip();
    const RankStepScope scope;
    return inner(nullptr);
  }
  const RankStepScope scope;
  return inner([&] {
    torch::Tensor loss = closure_of_a_new_step(closure);
    synchronize();
    clip();
    // LBFGS's search depends on the loss, and all ranks must decide alike.
    if (reducer_ && dynamic_cast<torch::optim::LBFGS*>(&optimizer_) != nullptr) {
      loss = loss.detach().clone();
      allreduce(*among_, loss, loss, {.name = name_ + "/loss", .op = reduce_op(op_)});
    }
    return loss;
  });
}

torch::Tensor RankStep::shared_step(const Closure& closure, const InnerStep& inner) {
  const at::NoGradGuard no_grad;
  torch::Tensor loss;
  if (closure != nullptr) loss = closure_of_a_new_step(closure);
  set_rules();
  const auto outcome = reducer_->step(1.0, /*reduce=*/true, max_norm_, objection());
  for (const std::size_t position : outcome.fresh) install_state(position);
  if (!outcome.why_not_shared.empty()) {
    end_shared_step(outcome.why_not_shared);
    clip();
    inner(nullptr);
    return loss;
  }
  install_step_counts();
  if (max_norm_ > 0.0) grad_norm_ = at::scalar_tensor(reducer_->norm(), at::kDouble);
  return loss;
}

// Returns what the user has changed of what the ranks share, as the rest of a sentence; empty if
// nothing.
std::string RankStep::objection() const {
  std::size_t parameters = 0;
  for (const auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameters >= grouped_.size() || !grouped_[parameters].is_same(parameter)) {
        return "the optimizer's lists of parameters changed";
      }
      ++parameters;
    }
  }
  if (parameters != grouped_.size()) return "the optimizer's lists of parameters changed";
  for (const InstalledState& installed : installed_) {
    if (installed.state == nullptr) continue;
    const auto held = optimizer_.state().find(installed.parameter.unsafeGetTensorImpl());
    if (held == optimizer_.state().end() || held->second.get() != installed.state) {
      return "the optimizer's state was replaced";
    }
  }
  return "";
}

// Gives this rank its own copy of the state, except where the user has put in another state.
void RankStep::end_shared_step(const std::string& why) {
  CIRANDA_ASSERT(reducer_ != nullptr && !why.empty());  // I16: some rank objected
  why_not_shared_ = why;
  for (std::size_t position = 0; position < installed_.size(); ++position) {
    const InstalledState& installed = installed_[position];
    const auto held = optimizer_.state().find(installed.parameter.unsafeGetTensorImpl());
    if (held == optimizer_.state().end() || held->second.get() != installed.state) continue;
    held->second = known_->param_state(reducer_->state(position, /*copies=*/true));
  }
  reducer_->end_shared_step();
}

void RankStep::clip() {
  if (max_norm_ == 0.0) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) gradients.push_back(parameter.grad());
    }
  }
  grad_norm_.reset();
  if (gradients.empty()) return;
  // Computes what torch's clip_grad_norm_ does, without its wait for the GPU at the end.
  grad_norm_ = at::stack(at::_foreach_norm(gradients)).norm();
  at::_foreach_mul_(gradients, (max_norm_ / (grad_norm_ + 1e-6)).clamp_max(1.0));
}

void RankStep::set_rules() {
  CIRANDA_ASSERT(known_ != nullptr && reducer_ != nullptr);  // I16: by obstacle()
  const auto& groups = optimizer_.param_groups();
  for (std::size_t number = 0; number < groups.size(); ++number) {
    const kernels::UpdateRule rule = known_->rule(groups[number].options());
    if (number < rules_.size() && rules_[number] == rule) continue;
    reducer_->set_rule(number, rule);
    rules_.resize(std::max(rules_.size(), number + 1));
    rules_[number] = rule;
  }
}

// -------------------------------------------------------------------------------------------
// State of a shared step

void RankStep::adopt_state(std::size_t first) {
  if (!shared()) return;
  for (std::size_t position = first; position < installed_.size(); ++position) {
    const auto held = optimizer_.state().find(installed_[position].parameter.unsafeGetTensorImpl());
    const bool none = held == optimizer_.state().end() || held->second == nullptr;
    reducer_->adopt_state(position, none ? OptimizerState() : known_->state(*held->second));
    install_state(position);
  }
}

void RankStep::install_state(std::size_t position) {
  CIRANDA_ASSERT(position < installed_.size());
  const OptimizerState state = reducer_->state(position, /*copies=*/false);
  if (state.empty()) return;
  InstalledState& installed = installed_[position];
  auto& held = optimizer_.state()[installed.parameter.unsafeGetTensorImpl()];
  held = known_->param_state(state);
  installed.state = held.get();
  if (state.front().first == "step") installed.step_count = state.front().second;
}

void RankStep::install_step_counts() {
  for (const InstalledState& installed : installed_) {
    if (!installed.step_count.defined()) continue;
    const auto held = optimizer_.state().find(installed.parameter.unsafeGetTensorImpl());
    if (held == optimizer_.state().end()) continue;
    known_->set_step(*held->second,
                     static_cast<std::int64_t>(*installed.step_count.const_data_ptr<float>()));
  }
}

// -------------------------------------------------------------------------------------------

std::unique_ptr<DistributedStep::Impl> make_step(torch::optim::Optimizer& optimizer,
                                                 const std::type_info& type,
                                                 const NamedParameters& named_parameters,
                                                 const DistributedOptions& options) {
  if (options.mode) return make_served_step(optimizer, type, named_parameters, options);
  if (server_count() > 0) {
    throw Exception({.code = ErrorCode::kInvalidArgument,
                     .text = "DistributedOptimizer: this job has parameter servers; give a mode, "
                             "or start it without --ps"});
  }
  return std::make_unique<RankStep>(optimizer, type, named_parameters, options);
}

}  // namespace

DistributedStep::DistributedStep(
    torch::optim::Optimizer& optimizer, const std::type_info& type,
    const torch::OrderedDict<std::string, torch::Tensor>& named_parameters,
    const DistributedOptions& options)
    : impl_(make_step(optimizer, type, named_parameters.pairs(), options)) {}
DistributedStep::~DistributedStep() = default;

void DistributedStep::synchronize() {
  impl_->synchronize();
}
torch::Tensor DistributedStep::step(const Closure& closure, const InnerStep& inner) {
  return impl_->step(closure, inner);
}
void DistributedStep::forget_gradients() {
  impl_->forget_gradients();
}
void DistributedStep::adopt_param_group() {
  impl_->adopt_param_group();
}
void DistributedStep::adopt_state() {
  impl_->adopt_state();
}
void DistributedStep::save(const std::function<void()>& inner) {
  impl_->save(inner);
}
double DistributedStep::grad_norm() const {
  return impl_->grad_norm();
}
const std::string& DistributedStep::why_not_shared() const {
  return impl_->why_not_shared();
}

}  // namespace ciranda
