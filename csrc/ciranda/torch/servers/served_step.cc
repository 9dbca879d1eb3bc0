// Implements DistributedOptimizer of LibTorch programs in a job with parameter servers.
#include <ATen/core/grad_mode.h>
#include <c10/util/Type.h>
#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "ciranda/torch/process/servers.h"
#include "ciranda/torch/servers/ps_differences.h"
#include "ciranda/torch/servers/ps_step.h"
#include "ciranda/torch/step/distributed_step.h"
#include "ciranda/torch/step/known_optimizers.h"
#include "ciranda/torch/step/optimizer_checks.h"
#include "ciranda/torch/step/optimizer_options.h"
#include "ciranda/torch/tensor/error.h"

namespace ciranda {
namespace {

[[noreturn]] void refuse(ErrorCode code, const std::string& why) {
  throw Exception({.code = code, .text = "DistributedOptimizer: " + why});
}

ps::Mode mode_of(const ps::AnyMode& mode) {
  if (const auto* rounds = std::get_if<ps::Sync>(&mode)) {
    return {.kind = ps::ModeKind::kSync, .backup_workers = rounds->backup_workers};
  }
  if (const auto* bounded = std::get_if<ps::SSP>(&mode)) {
    return {.kind = ps::ModeKind::kSsp, .staleness = bounded->staleness};
  }
  if (const auto* downpour = std::get_if<ps::Downpour>(&mode)) {
    if (downpour->n_push < 1 || downpour->n_fetch < 1) {
      refuse(ErrorCode::kInvalidArgument, "Downpour: n_push and n_fetch must be at least 1");
    }
    return {};
  }
  if (const auto* elastic = std::get_if<ps::EASGD>(&mode)) {
    if (!(elastic->rho > 0.0) || elastic->period < 1) {
      refuse(ErrorCode::kInvalidArgument, "EASGD: rho must be more than 0, and period at least 1");
    }
    return {};
  }
  const auto& free = std::get<ps::Async>(mode);
  if (free.ahead != 0 && free.ahead != 1) {
    refuse(ErrorCode::kInvalidArgument, "Async: ahead must be 0 or 1");
  }
  const bool drops = free.policy == ps::Async::Policy::kDrop;
  if (drops != free.max_staleness.has_value()) {
    refuse(ErrorCode::kInvalidArgument,
           "Async: Policy::kDrop and max_staleness must be given together: gradients staler than "
           "max_staleness are dropped");
  }
  return {.policy = static_cast<ps::StalePolicy>(free.policy),
          .max_staleness = free.max_staleness.value_or(ps::kUnboundedStaleness)};
}

bool is_ahead(const ps::AnyMode& mode) {
  const auto* free = std::get_if<ps::Async>(&mode);
  return free != nullptr && free->ahead == 1;
}

std::optional<ps::Downpour> downpour_of(const ps::AnyMode& mode) {
  const auto* downpour = std::get_if<ps::Downpour>(&mode);
  return downpour == nullptr ? std::nullopt : std::optional(*downpour);
}

PsDifferences::Options differences_of(const ps::AnyMode& mode) {
  PsDifferences::Options options{.mode = mode_of(mode)};
  if (const auto* elastic = std::get_if<ps::EASGD>(&mode)) {
    options.rho = elastic->rho;
    options.period = elastic->period;
  }
  return options;
}

// The common part of StepOnServers and StepOfWorker, which differ in who makes the step.
class ServerStep : public DistributedStep::Impl {
 public:
  ServerStep(torch::optim::Optimizer& optimizer, std::string why_not_shared)
      : optimizer_(optimizer),
        parameters_(parameters_of(optimizer)),
        why_not_shared_(std::move(why_not_shared)) {}

  void synchronize() override {}
  void forget_gradients() override {}
  void adopt_param_group() override {
    refuse(ErrorCode::kUnsupported,
           "parameter servers hold the parameters that the optimizer had when DistributedOptimizer "
           "was made; give it all parameters before that");
  }
  const std::string& why_not_shared() const override { return why_not_shared_; }

 protected:
  void refuse_other_parameters() const {
    const std::vector<at::Tensor> now = parameters_of(optimizer_);
    const bool same = std::equal(now.begin(), now.end(), parameters_.begin(), parameters_.end(),
                                 [](const auto& a, const auto& b) { return a.is_same(b); });
    if (!same) {
      refuse(ErrorCode::kInvalidArgument,
             "the optimizer's lists of parameters changed, which servers do not see; make "
             "DistributedOptimizer after the last change");
    }
  }

  torch::optim::Optimizer& optimizer_;
  const std::vector<at::Tensor> parameters_;  // of every parameter group

 private:
  const std::string why_not_shared_;
};

class StepOnServers final : public ServerStep {
 public:
  StepOnServers(torch::optim::Optimizer& optimizer, const std::type_info& type,
                NamedParameters parameters, const DistributedOptions& options)
      : ServerStep(optimizer, ""),
        known_(find_known_optimizer(type)),
        max_norm_(options.max_grad_norm.value_or(0.0)),
        named_(std::move(parameters)) {
    if (known_ == nullptr) {
      refuse(ErrorCode::kInvalidArgument,
             "parameter servers cannot make the step, because " + c10::demangle(type.name()) +
                 " is not one of SGD, Adam, AdamW, Adagrad, RMSprop; pass UpdateOn::kWorker");
    }
    const auto downpour = downpour_of(*options.mode);
    served_ = make_ps_step({.mode = mode_of(*options.mode),
                            .ahead = is_ahead(*options.mode),
                            .force = options.force,
                            .push_every = downpour ? downpour->n_push : 0,
                            .fetch_every = downpour ? downpour->n_fetch : 0});
    for (std::size_t position = 0; position < named_.size(); ++position) {
      const auto held = optimizer_.state().find(named_[position].second.unsafeGetTensorImpl());
      if (held == optimizer_.state().end() || held->second == nullptr) continue;
      served_->adopt_state(position, known_->state(*held->second));
    }
    set_rules();
    served_->add_parameters(named_, groups_of(optimizer_, named_));
  }

  torch::Tensor step(const DistributedStep::Closure& closure,
                     const DistributedStep::InnerStep&) override {
    torch::Tensor loss;
    if (closure != nullptr) {
      const at::AutoGradMode enabled(true);
      loss = closure();
    }
    const at::NoGradGuard no_grad;
    refuse_other_parameters();
    set_rules();
    served_->step(1.0, max_norm_, "");
    return loss;
  }

  void adopt_state() override {
    refuse(ErrorCode::kUnsupported,
           "parameter servers hold the optimizer's state and cannot load one yet; start with a new "
           "optimizer, or train with the ring");
  }

  // Fetches the state from the servers for the time of `inner`.
  void save(const std::function<void()>& inner) override {
    for (std::size_t position = 0; position < named_.size(); ++position) {
      const OptimizerState state = served_->state(position);
      if (state.empty()) continue;
      optimizer_.state()[named_[position].second.unsafeGetTensorImpl()] =
          known_->param_state(state);
    }
    inner();
    optimizer_.state().clear();
  }

  double grad_norm() const override { return served_->norm(); }

 private:
  void set_rules() {
    const auto& groups = optimizer_.param_groups();
    for (std::size_t number = 0; number < groups.size(); ++number) {
      served_->set_rule(number, known_->rule(groups[number].options()));
    }
  }

  const KnownOptimizer* const known_;
  const double max_norm_;
  const NamedParameters named_;
  std::shared_ptr<PsStep> served_;
};

class StepOfWorker final : public ServerStep {
 public:
  StepOfWorker(torch::optim::Optimizer& optimizer, const NamedParameters& parameters,
               const DistributedOptions& options)
      : ServerStep(optimizer, "each worker makes its own step"),
        max_norm_(options.max_grad_norm.value_or(0.0)),
        group_of_(std::holds_alternative<ps::EASGD>(*options.mode)
                      ? groups_of(optimizer, parameters)
                      : std::vector<std::size_t>()),
        differences_(make_ps_differences(differences_of(*options.mode))) {
    if (is_ahead(*options.mode)) {
      refuse(ErrorCode::kInvalidArgument,
             "with UpdateOn::kWorker a step begins where the one before ended; use Async with "
             "ahead=0");
    }
    if (downpour_of(*options.mode)) {
      refuse(ErrorCode::kInvalidArgument,
             "with Downpour the servers make the step; use UpdateOn::kServer");
    }
    differences_->add_parameters(parameters);
  }

  torch::Tensor step(const DistributedStep::Closure& closure,
                     const DistributedStep::InnerStep& inner) override {
    refuse_other_parameters();
    differences_->begin();
    torch::Tensor loss;
    if (closure == nullptr) {
      clip();
      loss = inner(nullptr);
    } else {
      loss = inner([&] {
        const at::AutoGradMode enabled(true);
        torch::Tensor of_closure = closure();
        clip();
        return of_closure;
      });
    }
    differences_->push(rates());
    return loss;
  }

  void adopt_state() override {}
  void save(const std::function<void()>& inner) override { inner(); }
  double grad_norm() const override { return norm_; }

 private:
  // Returns the learning rate of each parameter; empty unless the mode is EASGD.
  std::vector<double> rates() {
    std::vector<double> rates;
    for (const std::size_t group : group_of_) {
      rates.push_back(optimizer_.param_groups()[group].options().get_lr());
    }
    return rates;
  }
  void clip() {
    if (max_norm_ > 0.0) norm_ = torch::nn::utils::clip_grad_norm_(parameters_, max_norm_);
  }

  const double max_norm_;
  double norm_ = 0.0;
  const std::vector<std::size_t> group_of_;
  std::shared_ptr<PsDifferences> differences_;
};

}  // namespace

std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const auto& group : optimizer.param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

std::vector<std::size_t> groups_of(const torch::optim::Optimizer& optimizer,
                                   const NamedParameters& parameters) {
  std::unordered_map<const void*, std::size_t> group_of;
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    for (const at::Tensor& parameter : optimizer.param_groups()[group].params()) {
      group_of.emplace(parameter.unsafeGetTensorImpl(), group);
    }
  }
  std::vector<std::size_t> groups;
  for (const auto& [name, parameter] : parameters) {
    groups.push_back(group_of.at(parameter.unsafeGetTensorImpl()));
  }
  return groups;
}

std::unique_ptr<DistributedStep::Impl> make_served_step(torch::optim::Optimizer& optimizer,
                                                        const std::type_info& type,
                                                        const NamedParameters& named_parameters,
                                                        const DistributedOptions& options) {
  check_values({.reduction = {.backward_passes_per_step = options.backward_passes_per_step},
                .max_grad_norm = options.max_grad_norm});
  refuse_options(Training::kServers, given_options(options));
  NamedParameters parameters = names_of(parameters_of(optimizer), named_parameters);
  if (options.update_on == ps::UpdateOn::kWorker ||
      std::holds_alternative<ps::EASGD>(*options.mode)) {
    return std::make_unique<StepOfWorker>(optimizer, parameters, options);
  }
  return std::make_unique<StepOnServers>(optimizer, type, std::move(parameters), options);
}

}  // namespace ciranda
