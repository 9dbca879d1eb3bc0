#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <typeinfo>

#include "ciranda/torch/step/optimizer_state.h"
#include "core/kernels/update_rule.h"

namespace ciranda {

// How to read and write a class of LibTorch's optimizers whose step the ranks can share. Options
// and states must be of that class.
struct KnownOptimizer {
  kernels::UpdateRule (*rule)(const torch::optim::OptimizerOptions& options);
  OptimizerState (*state)(const torch::optim::OptimizerParamState& state);
  std::unique_ptr<torch::optim::OptimizerParamState> (*param_state)(const OptimizerState& state);
  // Torch counts the steps of a parameter in a number of its state; no effect where it does not.
  void (*set_step)(torch::optim::OptimizerParamState& state, std::int64_t step);
};

// SGD, Adam, AdamW, Adagrad or RMSprop; nullptr for any other class, also one derived from them,
// whose step() may differ.
const KnownOptimizer* find_known_optimizer(const std::type_info& type);

}  // namespace ciranda
