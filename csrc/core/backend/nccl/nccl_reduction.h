#pragma once

#include <nccl.h>

#include <array>
#include <cstddef>
#include <optional>

#include "core/plan/fusion.h"

namespace ciranda {

ncclDataType_t nccl_type(DType dtype);

// How NCCL makes what an allreduce or a reducescatter asks for.
struct NcclReduction {
  ncclRedOp_t op = ncclSum;
  // Of a pre-multiplied sum, which takes the place of `op`: its factor as an element of the dtype.
  std::optional<std::array<std::byte, 8>> factor = {};
};

// What is oldest among all ranks'.
struct NcclOldest {
  int version = 0;             // of NCCL, as NCCL_VERSION_CODE
  int compute_capability = 0;  // of the GPUs: 90 is 9.0, Hopper
};

// A pure function of what was agreed and of what all ranks have, so that every rank comes to the
// same. kUnsupported with one sentence, if NCCL cannot: it scales sums and averages of float16 to
// float64 only, before it adds; and it adds float8 since 2.24, on Hopper and newer GPUs.
Result<NcclReduction> nccl_reduction(const FusedOp& op, int ranks, const NcclOldest& oldest);

}  // namespace ciranda
