#pragma once

#include "core/base/assert.h"
#include "core/kernels/reduce.h"
#include "core/plan/fusion.h"

namespace ciranda {

// Returns the kernels' arguments for reducing `op` over this number of ranks.
inline kernels::ReduceArgs reduce_args(const FusedOp& op, int ranks) {
  CIRANDA_ASSERT(ranks >= 1 && op.op != ReduceOp::kAdasum);  // Adasum runs as other operations
  const double divisor = op.op == ReduceOp::kAverage ? static_cast<double>(ranks) : 1.0;
  return {
      .dtype = op.dtype, .op = op.op, .prescale = op.prescale, .postscale = op.postscale / divisor};
}

}  // namespace ciranda
