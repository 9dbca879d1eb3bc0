#pragma once

#include <cstdint>
#include <optional>

#include "ciranda/torch/collective/collective.h"

namespace ciranda {

// A user's number for a collective that was started. The process keeps the collective until it is
// synchronized. The functions are thread-safe. In a forked child poll() and synchronize() throw
// kForked.
using HandleId = std::int64_t;

// Keeps the collective and returns its number.
HandleId hold(Started collective);
// Returns true if synchronize() would not block and a GPU has computed the results. Throws
// kInvalidArgument for a number that is not in use.
bool poll(HandleId id);
// Blocks until the collective is done, forgets its number and returns the result. Returns nothing
// if the number is not in use, as in a second call. `look`: see Engine::wait().
std::optional<CollectiveResult> synchronize(HandleId id, const Engine::Look& look = {});

}  // namespace ciranda
