#pragma once

#include <memory>

#include "core/runtime/world.h"

namespace ciranda {

// The one World that init() of <ciranda/torch.h> makes: the only state of the process that is not
// owned by an object. Thread-safe.

// This rank's place. Also in a child made by fork (a DataLoader worker may ask which rank it works
// for); kNotInitialized without a World.
Place default_place();

// The World; kNotInitialized without one, kForked in a child made by fork.
std::shared_ptr<World> default_world();

// Throws kForked in a child made by fork, before it touches any lock.
void refuse_in_forked_child();

}  // namespace ciranda
