#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ciranda/torch/step/optimizer_state.h"
#include "core/kernels/update_rule.h"

namespace ciranda {

// The state that torch's optimizer of that rule has of a parameter after so many steps. `array`: a
// copy of that one of its arrays (kernels::state_arrays).
OptimizerState state_of(const kernels::UpdateRule& rule, std::int64_t step,
                        const std::function<at::Tensor(std::size_t array)>& array);

// A parameter of a checkpoint that parameter servers have made, and its optimizer's state.
struct SavedParameter {
  std::string name;
  at::Tensor value;
  OptimizerState state;
  kernels::UpdateRule rule;  // of the optimizer
};

// In the order in which the servers hold them. Blocking. Throws Exception, with the file that
// cannot be used: see ps::CheckpointReader.
std::vector<SavedParameter> read_checkpoint(const std::string& path);

}  // namespace ciranda
