#pragma once

#include <cstdint>
#include <optional>

#include "ciranda/torch/collective/collective.h"

namespace ciranda {

// The numbers by which users know collectives that they have started; each holds its collective
// until it is synchronized. Thread-safe.
using HandleId = std::int64_t;

HandleId hold(Started collective);
// True when synchronize() would not block, and a GPU has the results.
bool poll(HandleId id);
// Blocks until done and forgets the handle; a second call with the same id gives nothing. `look`:
// see Engine::wait().
std::optional<CollectiveResult> synchronize(HandleId id, const Engine::Look& look = {});

}  // namespace ciranda
