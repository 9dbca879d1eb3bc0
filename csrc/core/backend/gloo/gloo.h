#pragma once

#include "core/backend/registry.h"

namespace ciranda {

// Collectives of CPU memory by Gloo, flat over all ranks.
std::unique_ptr<Backend> make_gloo(BackendContext context);
BackendFacts gloo_facts();

}  // namespace ciranda
