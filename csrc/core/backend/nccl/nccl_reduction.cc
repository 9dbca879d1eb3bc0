#include "core/backend/nccl/nccl_reduction.h"

#include <cmath>
#include <string>

#include "core/base/assert.h"
#include "core/kernels/reduce.h"

namespace ciranda {
namespace {

constexpr int kFloat8VersionMin = NCCL_VERSION(2, 24, 0);
constexpr int kFloat8CapabilityMin = 90;

Error refused(const FusedOp& op, const std::string& why) {
  return {.code = ErrorCode::kUnsupported,
          .text = "NCCL has no " + std::string(reduce_op_name(op.op)) + " of " +
                  std::string(dtype_name(op.dtype)) + " " + why};
}

ncclRedOp_t unscaled(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ncclSum;
    case ReduceOp::kAverage:
      return ncclAvg;
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kMax:
      return ncclMax;
    case ReduceOp::kProduct:
      return ncclProd;
    case ReduceOp::kAdasum:
      break;  // check_limits() refuses it
  }
  CIRANDA_UNREACHABLE();
}

std::array<std::byte, 8> element(DType dtype, double value) {
  std::array<std::byte, 8> bytes = {};
  kernels::cast(DType::kFloat64, reinterpret_cast<const std::byte*>(&value), dtype, bytes.data(),
                1);
  return bytes;
}

// Returns true if `value` as an element of `dtype` stays finite and does not become zero.
bool fits(DType dtype, double value) {
  const std::array<std::byte, 8> rounded = element(dtype, value);
  double back = 0;
  kernels::cast(dtype, rounded.data(), DType::kFloat64, reinterpret_cast<std::byte*>(&back), 1);
  return std::isfinite(back) && (back != 0.0 || value == 0.0);
}

}  // namespace

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::kUInt8:
      return ncclUint8;
    case DType::kInt8:
      return ncclInt8;
    case DType::kInt32:
      return ncclInt32;
    case DType::kInt64:
      return ncclInt64;
    case DType::kFloat16:
      return ncclFloat16;
    case DType::kBFloat16:
      return ncclBfloat16;
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kFloat64:
      return ncclFloat64;
    case DType::kFloat8E4M3:
      return ncclFloat8e4m3;
    case DType::kFloat8E5M2:
      return ncclFloat8e5m2;
  }
  CIRANDA_UNREACHABLE();
}

Result<NcclReduction> nccl_reduction(const FusedOp& op, int ranks, const NcclOldest& oldest) {
  CIRANDA_ASSERT(ranks >= 1 && reduces(op.kind));
  if (is_float8(op.dtype) && oldest.version < kFloat8VersionMin) {
    return refused(op, "before 2.24, and a rank has an older one; convert the tensor to bfloat16");
  }
  if (is_float8(op.dtype) && oldest.compute_capability < kFloat8CapabilityMin) {
    return refused(
        op, "on a GPU older than Hopper, and a rank has one; convert the tensor to bfloat16");
  }
  if (op.prescale == 1.0 && op.postscale == 1.0) return NcclReduction{.op = unscaled(op.op)};
  if (op.op != ReduceOp::kSum && op.op != ReduceOp::kAverage) {
    return refused(op, "with scale factors; scale the tensor before or after");
  }
  if (!is_floating(op.dtype)) {
    return refused(op, "with scale factors; scale the tensor itself, or convert it to float32");
  }
  const double divisor = op.op == ReduceOp::kAverage ? static_cast<double>(ranks) : 1.0;
  const double factor = op.prescale * op.postscale / divisor;
  if (!fits(op.dtype, factor)) {
    return refused(op, "with a factor of " + std::to_string(factor) +
                           ", which that dtype cannot hold; convert the tensor to float32");
  }
  return NcclReduction{.op = ncclSum, .factor = element(op.dtype, factor)};
}

}  // namespace ciranda
