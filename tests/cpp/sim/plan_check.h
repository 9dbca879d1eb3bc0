#pragma once

#include <vector>

#include "core/negotiate/response.h"
#include "core/plan/fusion.h"

namespace ciranda::sim {

// Throws Violation unless `plan` is a right one for `responses`: every tensor of every kRun
// response is reduced exactly once (I4), members of one op are alike, no op is too large, order is
// kept where it must be, and what may be fused and fits is fused.
void check_plan(const std::vector<Response>& responses, const std::vector<FusedOp>& plan,
                const FusionLimits& limits);

}  // namespace ciranda::sim
