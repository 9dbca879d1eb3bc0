#include "ciranda/torch/tensor/transport_dtype.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/tensor_view.h"
#include "core/base/assert.h"

namespace ciranda {
namespace {

// Returns the transport dtype of a dtype that is not complex; Undefined if it needs none.
c10::ScalarType carrier_of(c10::ScalarType type, ReduceOp op) {
  const bool averages = op == ReduceOp::kAverage;
  switch (type) {
    case c10::ScalarType::Byte:
    case c10::ScalarType::Char:
      return averages ? c10::ScalarType::Int : c10::ScalarType::Undefined;
    case c10::ScalarType::Int:
      return averages ? c10::ScalarType::Long : c10::ScalarType::Undefined;
    case c10::ScalarType::Bool:
    case c10::ScalarType::Short:
    case c10::ScalarType::UInt16:
      return c10::ScalarType::Int;
    case c10::ScalarType::UInt32:
      return c10::ScalarType::Long;
    case c10::ScalarType::Float8_e4m3fn:
    case c10::ScalarType::Float8_e4m3fnuz:
    case c10::ScalarType::Float8_e5m2:
    case c10::ScalarType::Float8_e5m2fnuz:
      return c10::ScalarType::Float;
    default:
      return c10::ScalarType::Undefined;
  }
}

// Returns true for the float8 dtypes that NCCL reduces.
bool is_float8_of_gpus(c10::ScalarType type) {
  return type == c10::ScalarType::Float8_e4m3fn || type == c10::ScalarType::Float8_e5m2;
}

}  // namespace

bool needs_transport_dtype(const at::Tensor& tensor, ReduceOp op) {
  if (!tensor.defined()) return false;
  const c10::ScalarType type = tensor.scalar_type();
  if (tensor.is_cuda() && is_float8_of_gpus(type)) return false;
  return c10::isComplexType(type) || carrier_of(type, op) != c10::ScalarType::Undefined;
}

at::Tensor to_transport_dtype(const at::Tensor& tensor, ReduceOp op, std::string_view what) {
  CIRANDA_ASSERT(needs_transport_dtype(tensor, op));
  const at::NoGradGuard no_grad;
  const auto refuse_unless = [&](bool good, const char* why) {
    if (good) return;
    throw Exception({.code = ErrorCode::kInvalidArgument, .text = std::string(what) + ": " + why});
  };
  if (tensor.is_complex()) {
    refuse_unless(op == ReduceOp::kSum || op == ReduceOp::kAverage,
                  "complex tensors are summed or averaged; use op=Sum or op=Average");
    return at::view_as_real(tensor);
  }
  refuse_unless(
      tensor.scalar_type() != c10::ScalarType::Bool || op != ReduceOp::kAverage,
      "the average of bool is not a bool; use op=Sum (any), op=Min (all), or convert the tensor");
  return tensor.to(carrier_of(tensor.scalar_type(), op));
}

void check_average(const at::Tensor& values, c10::ScalarType type, const RequestSpec& spec,
                   int ranks, std::string_view what) {
  if (spec.op != ReduceOp::kAverage || type != c10::ScalarType::Long) return;
  if (ranks == 1 || !values.is_cpu() || values.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const auto [least, most] = at::aminmax(values);
  const double largest = std::max(std::fabs(least.item<double>()), std::fabs(most.item<double>()));
  if (largest * std::fabs(spec.prescale) * ranks < 0x1p63) return;
  throw Exception({.code = ErrorCode::kInvalidArgument,
                   .text = std::string(what) + ": the average over " + std::to_string(ranks) +
                           " ranks divides their sum, which may overflow int64; average "
                           "tensor.double(), or give a prescale_factor"});
}

TensorSpec transport_spec_of(const at::Tensor& values, c10::ScalarType type,
                             std::string_view what) {
  TensorSpec spec = spec_of(values, what);
  spec.user_dtype = user_dtype_of(type, spec.dtype);
  return spec;
}

at::Tensor from_transport_dtype(const at::Tensor& values, c10::ScalarType type) {
  const bool splits = c10::isComplexType(type) && !values.is_complex();
  return splits ? at::view_as_complex(values) : values;
}

}  // namespace ciranda
