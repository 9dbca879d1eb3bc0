#pragma once

#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

namespace ciranda {

// The optimizer's state of one parameter, as torch.optim names its entries.
using OptimizerState = std::vector<std::pair<std::string, at::Tensor>>;

}  // namespace ciranda
