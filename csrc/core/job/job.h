#pragma once

#include <ciranda/ciranda.h>

#include <vector>

#include "core/base/result.h"
#include "core/engine/engine.h"

namespace ciranda {

// Process sets of both C++ APIs. Thread-safe.

// Makes a process set of `ranks`, which may be in any order. Collective; blocks; see
// Engine::add_group().
Result<ProcessSet> make_process_set(Engine& engine, std::vector<Rank> ranks);
ProcessSet whole_process_set(const Engine& engine);
// Returns the engine's number of the set. kInvalidArgument if the set is of an earlier job, because
// another set may have its number now.
Result<GroupId> number_of(const ProcessSet& process_set, const Engine& engine);

}  // namespace ciranda
