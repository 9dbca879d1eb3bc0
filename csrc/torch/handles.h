#pragma once

#include <cstdint>
#include <optional>

#include "torch/collective.h"

namespace ciranda {

// The numbers by which users know collectives that they have started. Thread-safe.
using HandleId = std::int64_t;

HandleId hold(Started collective);
// True when synchronize() would not block, and a GPU has the results.
bool poll(HandleId id);
// Blocks until done and forgets the handle; a second call with the same id gives nothing.
std::optional<CollectiveResult> synchronize(HandleId id);
// Nobody will call synchronize(): what the operation holds is freed once it is done. Does not
// block.
void abandon(HandleId id);

}  // namespace ciranda
