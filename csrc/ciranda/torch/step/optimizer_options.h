#pragma once

#include <ciranda/distributed_options.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ciranda/torch/step/optimizer_checks.h"
#include "ciranda/torch/step/reducer_options.h"

namespace ciranda {

// Options of a DistributedOptimizer over ranks, whatever the language. Equal on every rank.
struct OptimizerOptions {
  ReducerOptions reduction = {};  // `name` and `shared_step` are set by OptimizerCore
  SharedStepMode shared_step = SharedStepMode::kAuto;
  std::int64_t auto_parameters_min = kAutoParametersMin;  // with fewer, kAuto shares no step
  std::optional<double> max_grad_norm = {};
  // The ranks step with their own gradients and combine the changes of the parameters.
  bool adasum = false;
  // False: a compressor in Python reduces the gradients.
  bool reduces = true;
  std::string others = {};  // further options of the language, for the error of ranks that differ

  bool operator==(const OptimizerOptions&) const = default;
};

// Who trains together, and by what. The values are bits of a mask.
enum class Training : std::uint8_t { kRing = 1, kAdasum = 2, kServers = 4 };

// The training with which an option means something.
struct OptionRow {
  const char* name;
  std::uint8_t means_something_with;
};
// All options that do not mean something with every training. An option's name is the same in
// Python and in C++.
inline constexpr OptionRow kOptionTable[] = {
    {"bucket_bytes", 1},    {"broadcast_buffers", 1 | 2},
    {"compression", 1 | 2}, {"gradient_predivide_factor", 1},
    {"groups", 1},          {"max_grad_norm", 1 | 4},
    {"num_groups", 1},      {"op", 1 | 2},
    {"process_set", 1 | 2}, {"share_parameters", 1},
    {"shared_step", 1},
};

// Throws kInvalidArgument if an option is given (`given`: not at its default) that means nothing
// with `training`. The sentence names all such options.
void refuse_options(Training training, const std::vector<std::string>& given);

// Returns the names of the options that a LibTorch program gives: that are not at their default.
std::vector<std::string> given_options(const DistributedOptions& options);

// Throws kInvalidArgument if an option has an impossible value.
void check_values(const OptimizerOptions& options);

// Returns the option that demands a shared step; null if a shared step is only a wish.
const char* demanded_by(const OptimizerOptions& options);

// Describes the options for the error of ranks that differ in them.
std::string describe(const OptimizerOptions& options);

}  // namespace ciranda
