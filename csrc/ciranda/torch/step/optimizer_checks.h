#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ciranda/torch/collective/collective.h"
#include "ciranda/torch/step/step_types.h"
#include "core/wire/types.h"

namespace ciranda {

// Checks that DistributedOptimizer makes before it touches anything, in Python and in C++ alike.
// All functions throw Exception.

// Returns the optimizer's parameters `owned`, each with its first name in `named`, in the order of
// `named`. Throws kInvalidArgument if a name occurs twice or a parameter has no name.
NamedParameters names_of(const std::vector<at::Tensor>& owned, const NamedParameters& named);

// A step of fewer parameters costs less than the agreement on it.
inline constexpr std::int64_t kAutoParametersMin = 65536;

// Returns this rank's objection to sharing the step, as the rest of a sentence, or an empty text.
// `obstacle`: the objection of the optimizer itself. If an option demands a shared step
// (`demanded`), neither few parameters nor another backend is an objection: the user's choice of a
// backend does not concern what a host does with its own gradients.
std::string obstacle_to_sharing(bool demanded, std::optional<std::string> obstacle,
                                const NamedParameters& parameters,
                                std::int64_t auto_parameters_min);

// Compares the options and parameters of the ranks. Throws kMismatch on every rank if they differ,
// so that the ranks do not hang later, and kInvalidArgument if two ranks have a parameter in the
// same memory. `name` is the optimizer's. Returns the objection of the first rank that has one; it
// names the rank unless all ranks have the same objection. Collective; blocks.
std::string require_agreement(const Communicator& among, const std::string& name,
                              const std::string& options, const NamedParameters& parameters,
                              const std::string& obstacle);

// Returns the members' texts, in the members' order; a member that has joined has an empty one.
// Collective; blocks. `look`: see Engine::wait().
std::vector<std::string> texts_of_ranks(const Communicator& among, const std::string& mine,
                                        const std::string& name, const Engine::Look& look = {});

// Returns the objection that require_agreement() would return, or an empty text if no rank has one.
// Ranks that have joined have none. Collective; blocks.
std::string obstacle_of_a_rank(const Communicator& among, const std::string& mine,
                               const std::string& name);

}  // namespace ciranda
