#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ciranda/torch/collective/collective.h"
#include "ciranda/torch/step/reducer.h"
#include "core/wire/types.h"

namespace ciranda {

// What DistributedOptimizer asks and refuses before it touches anything, in Python and in C++
// alike. All throw Exception.

void check_options(ReduceOp op, double predivide_factor, int backward_passes_per_step,
                   std::optional<std::int64_t> bucket_bytes, std::optional<double> max_grad_norm);

// The optimizer's parameters `owned`, each with its first name, in the order of `named`.
NamedParameters names_of(const std::vector<at::Tensor>& owned, const NamedParameters& named);

// Below this many parameters the step costs less than to agree on it.
inline constexpr std::int64_t kAutoParametersMin = 65536;

// What this rank has against sharing the step, as the rest of a sentence. `obstacle`: what the
// optimizer itself has against it. With `demanded` (by an option) that the user chose another
// backend is none, what a host does with its gradients is its own affair, nor is it that there are
// few parameters.
std::string obstacle_to_sharing(bool demanded, std::optional<std::string> obstacle,
                                const NamedParameters& parameters,
                                std::int64_t auto_parameters_min);

// Collective, blocking: kMismatch on every rank, here and not as a hang later, if the ranks'
// options or parameters differ, and kInvalidArgument if two ranks have one in the same memory.
// `name` is the optimizer's. Gives the obstacle of the first rank
// that has one, with its rank if not all have the same.
std::string require_agreement(const Communicator& among, const std::string& name,
                              const std::string& options, const NamedParameters& parameters,
                              const std::string& obstacle);

// Every member's text, in their order; empty for those that have joined. Collective, blocking.
std::vector<std::string> texts_of_ranks(const Communicator& among, const std::string& mine,
                                        const std::string& name, const Engine::Look& look = {});

// As require_agreement() for an obstacle alone, empty if no rank has one; ranks that have joined
// have none. Collective, blocking.
std::string obstacle_of_a_rank(const Communicator& among, const std::string& mine,
                               const std::string& name);

}  // namespace ciranda
