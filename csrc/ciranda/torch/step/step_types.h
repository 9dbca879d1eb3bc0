#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ciranda {

using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

// The optimizer's state of one parameter, as torch.optim names its entries.
using OptimizerState = std::vector<std::pair<std::string, at::Tensor>>;

// What has become of a step that the ranks wanted to share.
struct StepOutcome {
  std::string why_not_shared = {};  // the objection, with its rank; empty if the step is done
  // Positions of parameters with new state, even from steps made while this rank had joined.
  std::vector<std::size_t> fresh = {};
};

// What has become of a shared step in which the World has failed.
enum class LostStep : std::uint8_t {
  kNone,       // none was begun, so nothing has changed
  kBegun,      // it counts; this rank can complete it
  kForOthers,  // it counts; another rank must complete it
};

// Returns the factor, at most 1, by which torch's clip_grad_norm_ scales gradients from the global
// 2-norm `norm` to `max_norm`. Returns NaN if `norm` is NaN.
inline double clip_coefficient(double norm, double max_norm) {
  const double coefficient = max_norm / (norm + 1e-6);
  return coefficient > 1.0 ? 1.0 : coefficient;
}

}  // namespace ciranda
