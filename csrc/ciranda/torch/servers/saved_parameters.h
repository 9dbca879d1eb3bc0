#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ciranda/torch/step/step_types.h"
#include "core/kernels/update_rule.h"

namespace ciranda {

// Returns the state that torch's optimizer with this rule has of a parameter after `step` steps.
// `array` returns a copy of the array with that index in kernels::state_arrays().
OptimizerState state_of(const kernels::UpdateRule& rule, std::int64_t step,
                        const std::function<at::Tensor(std::size_t array)>& array);

// A parameter of a checkpoint that parameter servers have made, with its optimizer's state.
struct SavedParameter {
  std::string name;
  at::Tensor value;
  OptimizerState state;
  kernels::UpdateRule rule;
};

// Returns a checkpoint's parameters in the order in which the servers hold them. Blocks. Throws
// Exception that names the file that cannot be used, see ps::CheckpointReader.
std::vector<SavedParameter> read_checkpoint(const std::string& path);

}  // namespace ciranda
