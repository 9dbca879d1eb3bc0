#pragma once

#include <ciranda/ciranda.h>

#include <vector>

#include "core/base/result.h"
#include "core/engine/engine.h"

namespace ciranda {

// Process sets, as both C++ APIs have them. Thread-safe.

// Collective, blocking; see Engine::add_group. `ranks` in any order.
Result<ProcessSet> make_process_set(Engine& engine, std::vector<Rank> ranks);
ProcessSet whole_process_set(const Engine& engine);
// By which number the engine knows the set; kInvalidArgument for one of an earlier job, whose
// number another set may have now.
Result<GroupId> number_of(const ProcessSet& process_set, const Engine& engine);

}  // namespace ciranda
