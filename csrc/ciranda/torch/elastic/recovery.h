#pragma once

#include <cstdint>

#include "ciranda/torch/collective/collective.h"
#include "core/member/recovery.h"

namespace ciranda {

// Tells all ranks of the communicator whether this one holds the training's state, and how far it
// is; returns the plan that all ranks then have alike. Collective, blocking.
member::RecoveryPlan agree_on_recovery(const Communicator& among, const member::Standing& own);

}  // namespace ciranda
