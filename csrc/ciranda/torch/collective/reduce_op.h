#pragma once

#include <ciranda/ciranda.h>

#include "core/wire/types.h"

namespace ciranda {

// Converts the operator of the installed headers to core's.
constexpr ReduceOp reduce_op(Job::Op op) {
  static_assert(static_cast<int>(Job::Op::kSum) == static_cast<int>(ReduceOp::kSum) &&
                static_cast<int>(Job::Op::kAverage) == static_cast<int>(ReduceOp::kAverage) &&
                static_cast<int>(Job::Op::kMin) == static_cast<int>(ReduceOp::kMin) &&
                static_cast<int>(Job::Op::kMax) == static_cast<int>(ReduceOp::kMax) &&
                static_cast<int>(Job::Op::kProduct) == static_cast<int>(ReduceOp::kProduct) &&
                static_cast<int>(Job::Op::kAdasum) == static_cast<int>(ReduceOp::kAdasum));
  return static_cast<ReduceOp>(op);
}

}  // namespace ciranda
