#pragma once

#include <nccl.h>

#include <array>
#include <cstddef>
#include <optional>

#include "core/plan/fusion.h"

namespace ciranda {

ncclDataType_t nccl_type(DType dtype);

// How NCCL computes an allreduce or a reducescatter.
struct NcclReduction {
  ncclRedOp_t op = ncclSum;
  // Factor of a pre-multiplied sum, as an element of the dtype. Such a sum replaces `op`.
  std::optional<std::array<std::byte, 8>> factor = {};
};

// The oldest NCCL and the oldest GPU among all ranks.
struct NcclOldest {
  int version = 0;             // of NCCL, as NCCL_VERSION_CODE
  int compute_capability = 0;  // of the GPUs: 90 is 9.0, Hopper
};

// Chooses the reduction. A pure function of agreed data and of the oldest NCCL and GPU, so every
// rank gets the same result. kUnsupported, with one sentence, if NCCL cannot: it scales only sums
// and averages of float16 to float64, before it adds; and it adds float8 since 2.24, on Hopper and
// newer GPUs.
Result<NcclReduction> nccl_reduction(const FusedOp& op, int ranks, const NcclOldest& oldest);

}  // namespace ciranda
