#include "ciranda/torch/step/known_optimizers.h"

#include <ATen/ops/scalar_tensor.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <string_view>
#include <tuple>
#include <utility>

namespace ciranda {
namespace {

// Each class has some of these options and arrays, under the same names.
template <kernels::RuleKind kKind, typename Options>
kernels::UpdateRule rule_of(const torch::optim::OptimizerOptions& options) {
  const auto& own = static_cast<const Options&>(options);
  kernels::UpdateRule rule{.kind = kKind, .lr = own.lr(), .weight_decay = own.weight_decay()};
  if constexpr (requires { own.momentum(); }) rule.momentum = own.momentum();
  if constexpr (requires { own.dampening(); }) rule.dampening = own.dampening();
  if constexpr (requires { own.nesterov(); }) rule.nesterov = own.nesterov();
  if constexpr (requires { own.betas(); }) std::tie(rule.beta1, rule.beta2) = own.betas();
  if constexpr (requires { own.amsgrad(); }) rule.amsgrad = own.amsgrad();
  if constexpr (requires { own.eps(); }) rule.eps = own.eps();
  if constexpr (requires { own.lr_decay(); }) rule.lr_decay = own.lr_decay();
  if constexpr (requires { own.initial_accumulator_value(); }) {
    rule.initial_accumulator_value = own.initial_accumulator_value();
  }
  if constexpr (requires { own.alpha(); }) rule.alpha = own.alpha();
  if constexpr (requires { own.centered(); }) rule.centered = own.centered();
  return rule;
}

// Calls fn(name, tensor) for each array of a state.
template <typename ParamState, typename Fn>
void for_each_array(ParamState& state, Fn fn) {
  using enum kernels::StateArray;
  if constexpr (requires { state.momentum_buffer(); }) fn(kMomentumBuffer, state.momentum_buffer());
  if constexpr (requires { state.exp_avg(); }) fn(kExpAvg, state.exp_avg());
  if constexpr (requires { state.exp_avg_sq(); }) fn(kExpAvgSq, state.exp_avg_sq());
  if constexpr (requires { state.max_exp_avg_sq(); }) fn(kMaxExpAvgSq, state.max_exp_avg_sq());
  if constexpr (requires { state.sum(); }) fn(kSum, state.sum());
  if constexpr (requires { state.square_avg(); }) fn(kSquareAvg, state.square_avg());
  if constexpr (requires { state.grad_avg(); }) fn(kGradAvg, state.grad_avg());
}

template <typename ParamState>
OptimizerState state_of(const torch::optim::OptimizerParamState& state) {
  const auto& own = static_cast<const ParamState&>(state);
  OptimizerState result;
  if constexpr (requires { own.step(); })
    result.emplace_back("step", at::scalar_tensor(own.step()));
  for_each_array(own, [&](kernels::StateArray array, const at::Tensor& tensor) {
    if (tensor.defined()) result.emplace_back(kernels::torch_name(array), tensor);
  });
  return result;
}

template <typename ParamState>
void set_step(torch::optim::OptimizerParamState& state, std::int64_t step) {
  if constexpr (requires(ParamState own) { own.step(step); }) {
    static_cast<ParamState&>(state).step(step);
  }
}

template <typename ParamState>
std::unique_ptr<torch::optim::OptimizerParamState> param_state_of(const OptimizerState& state) {
  auto result = std::make_unique<ParamState>();
  for (const auto& entry : state) {
    if (entry.first == "step") set_step<ParamState>(*result, entry.second.item().toLong());
    for_each_array(*result, [&](kernels::StateArray array, at::Tensor& tensor) {
      if (entry.first == kernels::torch_name(array)) tensor = entry.second;
    });
  }
  return result;
}

template <kernels::RuleKind kKind, typename Options, typename ParamState>
constexpr KnownOptimizer kKnown = {.rule = rule_of<kKind, Options>,
                                   .state = state_of<ParamState>,
                                   .param_state = param_state_of<ParamState>,
                                   .set_step = set_step<ParamState>};

}  // namespace

const KnownOptimizer* find_known_optimizer(const std::type_info& type) {
  using namespace torch::optim;  // NOLINT: a table of its names
  using enum kernels::RuleKind;
  if (type == typeid(SGD)) return &kKnown<kSgd, SGDOptions, SGDParamState>;
  if (type == typeid(Adam)) return &kKnown<kAdam, AdamOptions, AdamParamState>;
  if (type == typeid(AdamW)) return &kKnown<kAdamW, AdamWOptions, AdamWParamState>;
  if (type == typeid(Adagrad)) return &kKnown<kAdagrad, AdagradOptions, AdagradParamState>;
  if (type == typeid(RMSprop)) return &kKnown<kRmsprop, RMSpropOptions, RMSpropParamState>;
  return nullptr;
}

}  // namespace ciranda
