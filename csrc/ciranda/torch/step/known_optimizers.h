#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <typeinfo>

#include "ciranda/torch/step/step_types.h"
#include "core/kernels/update_rule.h"

namespace ciranda {

// Reads and writes options and state of one class of LibTorch's optimizers, for a shared step.
// Arguments must belong to that class.
struct KnownOptimizer {
  kernels::UpdateRule (*rule)(const torch::optim::OptimizerOptions& options);
  OptimizerState (*state)(const torch::optim::OptimizerParamState& state);
  std::unique_ptr<torch::optim::OptimizerParamState> (*param_state)(const OptimizerState& state);
  // Sets torch's count of a parameter's steps. Has no effect if the class has no such count.
  void (*set_step)(torch::optim::OptimizerParamState& state, std::int64_t step);
};

// Returns the entry of SGD, Adam, AdamW, Adagrad or RMSprop. Returns nullptr for any other class,
// even a derived one, since its step() may differ.
const KnownOptimizer* find_known_optimizer(const std::type_info& type);

}  // namespace ciranda
