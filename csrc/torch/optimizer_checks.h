#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "torch/gradient_reducer.h"

namespace ciranda {

// What DistributedOptimizer asks and refuses before it touches anything, in Python and in C++
// alike. All throw Exception.

void check_options(ReduceOp op, double predivide_factor, int backward_passes_per_step,
                   std::optional<std::int64_t> bucket_bytes, std::optional<double> max_grad_norm);

// The optimizer's parameters `owned`, each with its first name, in the order of `named`.
NamedParameters names_of(const std::vector<at::Tensor>& owned, const NamedParameters& named);

// Below this many parameters the step costs less than to agree on it.
inline constexpr std::int64_t kAutoParametersMin = 65536;

// Why the ranks do not share the step, as the rest of a sentence; nothing if they do. `obstacle`:
// what the optimizer itself has against it. An obstacle throws if an option demands a shared step
// (`demanded_by`, "shard_step='host'"); that the user chose another backend is none then, what a
// host does with its gradients is its own affair.
std::optional<std::string> why_not_shared(const std::optional<std::string>& demanded_by,
                                          std::optional<std::string> obstacle,
                                          const NamedParameters& parameters,
                                          std::int64_t auto_parameters_min);

// Collective, blocking: kMismatch on every rank, here and not as a hang later, if the ranks'
// options or parameters differ. `name` is the optimizer's.
void require_agreement(const std::string& name, const std::string& options,
                       const NamedParameters& parameters);

}  // namespace ciranda
