#pragma once

#include "core/backend/registry.h"

namespace ciranda {

// Runs collectives on CPU memory by Gloo, flat over the ranks of a group. A separate thread runs
// them one after the other. Data travels as it is, whatever the wire dtype. The data between hosts
// is neither authenticated nor encrypted: only for trusted networks.
std::unique_ptr<Backend> make_gloo(BackendContext context);
BackendFacts gloo_facts();

}  // namespace ciranda
