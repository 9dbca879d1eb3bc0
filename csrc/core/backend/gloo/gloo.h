#pragma once

#include "core/backend/registry.h"

namespace ciranda {

// Collectives of memory of the CPU by Gloo, flat over all ranks: an allreduce by its ring, all
// others by what it has for them. A thread of its own runs them one after the other. Data travel as
// they are, whatever the wire dtype. What goes between hosts is neither authenticated nor
// encrypted: for networks that are trusted.
std::unique_ptr<Backend> make_gloo(BackendContext context);
BackendFacts gloo_facts();

}  // namespace ciranda
