#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Type.h>
#include <ciranda/torch.h>
#include <torch/optim/lbfgs.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ciranda/torch/collective/reduce_op.h"
#include "ciranda/torch/gradient/rank_graph.h"
#include "ciranda/torch/optimizer/optimizer_core.h"
#include "ciranda/torch/process/default_world.h"
#include "ciranda/torch/process/rank_optimizer.h"
#include "ciranda/torch/process/servers.h"
#include "ciranda/torch/step/distributed_step.h"
#include "ciranda/torch/step/known_optimizers.h"
#include "ciranda/torch/step/optimizer_checks.h"
#include "ciranda/torch/step/shared_step.h"
#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/tensor_view.h"
#include "core/base/assert.h"
#include "core/job/job.h"

namespace ciranda {
namespace {

// Throws kInvalidArgument if this rank is not one of those that train together.
void require_member(const ProcessSet& process_set) {
  const Engine& engine = *default_world()->engine();
  const auto among =
      default_communicator(unwrap(number_of(process_set, engine)), "DistributedOptimizer");
  if (among->group->contains(engine.rank())) return;
  throw Exception({.code = ErrorCode::kInvalidArgument,
                   .text = c10::str("DistributedOptimizer: rank ", engine.rank(),
                                    " is not a member of process set ", among->group->id,
                                    "; make the optimizer only on members of the set")});
}

OptimizerOptions options_of(const DistributedOptions& options) {
  const bool adasum = options.op == Op::kAdasum;
  if (adasum) refuse_options(Training::kAdasum, given_options(options));
  return {.reduction = {.op = adasum ? ReduceOp::kAverage : reduce_op(options.op),
                        .predivide_factor = options.gradient_predivide_factor,
                        .backward_passes_per_step = options.backward_passes_per_step,
                        .wire_dtype = wire_dtype_of(options.compression),
                        .sparse_as_dense = options.sparse_as_dense,
                        .bucket_bytes = options.bucket_bytes,
                        .share_parameters = options.share_parameters},
          .shared_step = options.shared_step,
          .max_grad_norm = options.max_grad_norm,
          .adasum = adasum};
}

std::optional<std::string> obstacle_of(const KnownOptimizer* known, const std::type_info& type) {
  if (known != nullptr) return std::nullopt;
  return c10::demangle(type.name()) + " is not one of SGD, Adam, AdamW, Adagrad, RMSprop";
}

double now_in_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool in_elastic_job() {
  return elastic_member() != nullptr;
}

// Throws kUnsupported for what cannot go on yet when ranks change.
void refuse_in_elastic_job(const torch::optim::Optimizer& optimizer,
                           const DistributedOptions& options) {
  const char* why = "";
  if (options.op == Op::kAdasum) {
    why = "op = kAdasum";
  } else if (options.shared_step == SharedStepMode::kHost) {
    why = "shared_step = SharedStepMode::kHost";
  } else if (options.share_parameters) {
    why = "share_parameters";
  } else if (options.process_set.id() != 0) {
    why = "process_set";
  } else if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) {
    why = "LBFGS";
  } else {
    return;
  }
  throw Exception(
      {.code = ErrorCode::kUnsupported,
       .text = c10::str("DistributedOptimizer: ", why,
                        " does not work in an elastic job (ciranda run --min-np) yet; leave it "
                        "out, or start the job without --min-np, --max-np and --spares")});
}

// Translates between OptimizerCore and an optimizer of LibTorch.
class RankStep final : public DistributedStep::Impl, public RankOptimizer {
 public:
  using Closure = DistributedStep::Closure;
  using InnerStep = DistributedStep::InnerStep;

  RankStep(torch::optim::Optimizer& optimizer, const std::type_info& type,
           const NamedParameters& named_parameters, const DistributedOptions& options);

  void synchronize() override { core().synchronize(); }
  void forget_gradients() override {
    if (core_ != nullptr) core_->discard_step();
  }
  torch::Tensor step(const Closure& closure, const InnerStep& inner) override;
  void adopt_param_group() override;
  void adopt_state() override { adopt_state(0); }
  void save(const std::function<void()>& inner) override { inner(); }

  double grad_norm() const override {
    return grad_norm_.defined() ? grad_norm_.item<double>() : 0.0;
  }
  const std::string& why_not_shared() const override { return core().why_not_shared(); }

  void leave_ranks() override { core_.reset(); }
  void train_anew() override;

 private:
  OptimizerCore& core() const;
  void add_parameters(const NamedParameters& parameters);
  void adopt_state(std::size_t first);
  torch::Tensor make_step(const Closure& closure, const InnerStep& inner,
                          const StepWatch::Applied& applied);
  torch::Tensor inner_step(const Closure& closure, const InnerStep& inner);
  torch::Tensor adasum_step(const Closure& closure, const InnerStep& inner);
  torch::Tensor shared_step(const Closure& closure, const InnerStep& inner);
  std::string objection() const;
  void end_shared_step(const std::string& why);
  torch::Tensor closure_of_a_new_step(const Closure& closure);
  std::string way() const;
  void clip();
  void set_rules();
  void retune();
  OptimizerState own_state(std::size_t position) const;
  void set_own_state(std::size_t position, const OptimizerState& state);
  void install_state(std::size_t position);
  void install_step_counts();

  torch::optim::Optimizer& optimizer_;
  const std::type_info& type_;
  const KnownOptimizer* const known_;  // null: the ranks cannot share its step
  OptimizerOptions options_;           // as the program gave them; the core's may be tuned
  const ProcessSet process_set_;
  NamedParameters parameters_;           // of all parameter groups
  std::unique_ptr<OptimizerCore> core_;  // null between leave_ranks() and train_anew()
  at::Tensor grad_norm_;  // on the gradients' device; undefined where nothing was clipped

  // A parameter, and what a shared step has put into the optimizer for it.
  struct InstalledState {
    at::Tensor parameter;
    at::Tensor step_count;  // in shared memory; undefined before the first step, and for SGD
    const torch::optim::OptimizerParamState* state = nullptr;
  };
  std::vector<InstalledState> installed_;  // by position in the core
  std::vector<at::Tensor> grouped_;        // the parameters of every parameter group
};

RankStep::RankStep(torch::optim::Optimizer& optimizer, const std::type_info& type,
                   const NamedParameters& named_parameters, const DistributedOptions& options)
    : RankOptimizer(optimizer),
      optimizer_(optimizer),
      type_(type),
      known_(find_known_optimizer(type)),
      options_(options_of(options)),
      process_set_(in_elastic_job() ? ProcessSet() : options.process_set),  // one of its Worlds
      parameters_(names_of(parameters_of(optimizer), named_parameters)) {
  if (in_elastic_job()) {
    refuse_in_elastic_job(optimizer, options);
    // A rank that dies in a shared step could tear the parameters of the others.
    options_.shared_step = SharedStepMode::kOff;
  }
  train_anew();
  if (!in_elastic_job()) core_->tune(c10::demangle(type.name()), now_in_seconds);
}

void RankStep::train_anew() {
  require_member(process_set_);
  const GroupId group = unwrap(number_of(process_set_, *default_world()->engine()));
  core_ = std::make_unique<OptimizerCore>(group, options_, parameters_, obstacle_of(known_, type_));
  installed_.clear();
  add_parameters(parameters_);
}

OptimizerCore& RankStep::core() const {
  if (core_ != nullptr) return *core_;
  throw Exception({.code = ErrorCode::kShutdown,
                   .text = "DistributedOptimizer: this rank has left the ranks of its elastic job "
                           "and could not join others; end the program"});
}

void RankStep::add_parameters(const NamedParameters& parameters) {
  const std::size_t first = installed_.size();
  for (const auto& [name, parameter] : parameters) installed_.push_back({.parameter = parameter});
  grouped_ = parameters_of(optimizer_);
  if (core().shares_step()) set_rules();
  core().add_parameters(parameters, groups_of(optimizer_, parameters));
  adopt_state(first);
}

void RankStep::adopt_param_group() {
  const std::size_t group = optimizer_.param_groups().size() - 1;
  NamedParameters added;
  for (const at::Tensor& parameter : optimizer_.param_groups()[group].params()) {
    added.emplace_back(c10::str("group.", group, ".param.", added.size()), parameter);
  }
  const std::string why = core().agree_on(added);
  if (!why.empty()) end_shared_step(why);  // it ended while this rank had joined
  add_parameters(added);
  parameters_.insert(parameters_.end(), added.begin(), added.end());
}

// -------------------------------------------------------------------------------------------
// A step

torch::Tensor RankStep::step(const Closure& closure, const InnerStep& inner) {
  StepWatch* const watch = StepWatch::installed();
  if (watch == nullptr) return make_step(closure, inner, nullptr);
  return watch->step(
      *this, [&](const StepWatch::Applied& applied) { return make_step(closure, inner, applied); });
}

torch::Tensor RankStep::make_step(const Closure& closure, const InnerStep& inner,
                                  const StepWatch::Applied& applied) {
  if (core().begin_step()) {
    const std::string difference = core().compare(way());
    if (!difference.empty()) TORCH_WARN("DistributedOptimizer: ", difference);
  }
  torch::Tensor loss = core().options().adasum ? adasum_step(closure, inner)
                       : core().shares_step()  ? shared_step(closure, inner)
                                               : inner_step(closure, inner);
  if (applied) applied();
  core().finish_step();
  if (core().end_step()) retune();
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
  core().finish_step();  // the closure computes new gradients
  const at::AutoGradMode enabled(true);
  return closure();
}

torch::Tensor RankStep::inner_step(const Closure& closure, const InnerStep& inner) {
  if (closure == nullptr) {
    core().synchronize();
    clip();
    const RankStepScope scope;
    return inner(nullptr);
  }
  const RankStepScope scope;
  return inner([&] {
    torch::Tensor loss = closure_of_a_new_step(closure);
    core().synchronize();
    clip();
    const bool searches = dynamic_cast<torch::optim::LBFGS*>(&optimizer_) != nullptr;
    return searches ? core().loss_of_all(loss) : loss;
  });
}

torch::Tensor RankStep::adasum_step(const Closure& closure, const InnerStep& inner) {
  std::vector<at::Tensor> trained;
  std::vector<at::Tensor> starts;
  for (const at::Tensor& parameter : parameters_of(optimizer_)) {
    if (!parameter.requires_grad()) continue;
    trained.push_back(parameter);
    starts.push_back(parameter.detach().clone());
  }
  torch::Tensor loss = inner(closure);
  if (core().alone()) return loss;
  std::vector<at::Tensor> changes = OptimizerCore::take_changes(trained, starts);
  const auto wire_dtype = core().options().reduction.wire_dtype;
  const auto narrow = wire_dtype ? std::optional(scalar_type(*wire_dtype)) : std::nullopt;
  for (at::Tensor& change : changes) {
    if (narrow && change.scalar_type() == at::kFloat) change = change.to(*narrow);
  }
  changes = core().combine(changes);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < trained.size(); ++i) trained[i].add_(changes[i]);
  return loss;
}

torch::Tensor RankStep::shared_step(const Closure& closure, const InnerStep& inner) {
  const at::NoGradGuard no_grad;
  torch::Tensor loss;
  if (closure != nullptr) loss = closure_of_a_new_step(closure);
  set_rules();
  const StepOutcome outcome = core().step(1.0, /*reduce=*/true, objection());
  for (const std::size_t position : outcome.fresh) install_state(position);
  if (!outcome.why_not_shared.empty()) {
    end_shared_step(outcome.why_not_shared);
    clip();
    inner(nullptr);
    return loss;
  }
  install_step_counts();
  if (core().options().max_grad_norm) grad_norm_ = at::scalar_tensor(core().norm(), at::kDouble);
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
  for (std::size_t position = 0; position < installed_.size(); ++position) {
    const InstalledState& installed = installed_[position];
    const auto held = optimizer_.state().find(installed.parameter.unsafeGetTensorImpl());
    if (held == optimizer_.state().end() || held->second.get() != installed.state) continue;
    set_own_state(position, core().state(position, /*copies=*/true));
  }
  core().end_shared_step(why);
}

void RankStep::clip() {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_of(optimizer_)) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  grad_norm_ = core().clip(gradients);
}

void RankStep::set_rules() {
  CIRANDA_ASSERT(known_ != nullptr);  // I16: by obstacle_of()
  const auto& groups = optimizer_.param_groups();
  for (std::size_t number = 0; number < groups.size(); ++number) {
    core().set_rule(number, known_->rule(groups[number].options()));
  }
}

// Applies what autotuning wants, and takes the state over to where it then belongs.
void RankStep::retune() {
  const bool shared = core().shares_step();
  std::vector<OptimizerState> states;
  for (std::size_t position = 0; position < installed_.size(); ++position) {
    states.push_back(shared ? core().state(position, /*copies=*/true) : own_state(position));
  }
  core().retune(states, obstacle_of(known_, type_));
  for (std::size_t position = 0; position < installed_.size(); ++position) {
    if (core().shares_step()) {
      install_state(position);
    } else if (shared) {
      set_own_state(position, states[position]);
    }
  }
}

// -------------------------------------------------------------------------------------------
// State

OptimizerState RankStep::own_state(std::size_t position) const {
  const auto held = optimizer_.state().find(installed_[position].parameter.unsafeGetTensorImpl());
  const bool none = known_ == nullptr || held == optimizer_.state().end() || !held->second;
  return none ? OptimizerState() : known_->state(*held->second);
}

// Puts in a state that is this rank's own.
void RankStep::set_own_state(std::size_t position, const OptimizerState& state) {
  InstalledState& installed = installed_[position];
  installed = {.parameter = installed.parameter};
  if (state.empty()) return;
  optimizer_.state()[installed.parameter.unsafeGetTensorImpl()] = known_->param_state(state);
}

// Makes the optimizer's state from parameter number `first` on the state of all ranks.
void RankStep::adopt_state(std::size_t first) {
  if (core_ == nullptr || !core_->shares_step()) return;
  for (std::size_t position = first; position < installed_.size(); ++position) {
    core().adopt_state(position, own_state(position));
    install_state(position);
  }
}

void RankStep::install_state(std::size_t position) {
  const OptimizerState state = core().state(position, /*copies=*/false);
  if (state.empty()) return;
  InstalledState& installed = installed_.at(position);
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
