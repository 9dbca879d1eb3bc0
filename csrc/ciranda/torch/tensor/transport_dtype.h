#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "core/wire/messages.h"

namespace ciranda {

// Whether the tensor is reduced in another dtype than its own, its transport dtype. Dtypes that no
// backend reduces have one: int32 for bool, int16 and uint16, int64 for uint32, float32 for float8
// on the CPU, real and imaginary parts for complex numbers. So have small integers of an average,
// whose sum may overflow: int32 for uint8 and int8, int64 for int32. Results are converted back as
// torch's copy_() converts: a bool is true where the result is not zero, integers wrap around,
// float8 is rounded once.
bool needs_transport_dtype(const at::Tensor& tensor, ReduceOp op);

// The tensor in its transport dtype. Throws kInvalidArgument where `op` makes no sense for its own.
at::Tensor to_transport_dtype(const at::Tensor& tensor, ReduceOp op, std::string_view what);

// Throws kInvalidArgument where the sum of an average of int64 might overflow: no wider dtype is
// reduced. Values on a GPU are not checked, since the host does not wait for them.
void check_average(const at::Tensor& values, c10::ScalarType type, const RequestSpec& spec,
                   int ranks, std::string_view what);

// The spec of a tensor in its transport dtype. Ranks must agree on `type`, the tensor's own dtype,
// too. `what` as in spec_of().
TensorSpec transport_spec_of(const at::Tensor& values, c10::ScalarType type, std::string_view what);

// A result as a tensor that copy_() or to() converts to dtype `type`.
at::Tensor from_transport_dtype(const at::Tensor& values, c10::ScalarType type);

}  // namespace ciranda
