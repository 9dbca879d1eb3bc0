#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "core/wire/messages.h"

namespace ciranda {

// Returns true if the tensor is reduced in another dtype than its own, its transport dtype. Dtypes
// that no backend reduces have one: int32 for bool, int16 and uint16, int64 for uint32, float32 for
// float8 on the CPU, real and imaginary parts for complex numbers. Small integers have one in an
// average, because their sum may overflow: int32 for uint8 and int8, int64 for int32. Results are
// converted back as torch's copy_() converts: a bool is true if the result is not zero, integers
// wrap around, float8 is rounded once.
bool needs_transport_dtype(const at::Tensor& tensor, ReduceOp op);

// Returns the tensor in its transport dtype. Throws kInvalidArgument if `op` makes no sense for the
// tensor's own dtype.
at::Tensor to_transport_dtype(const at::Tensor& tensor, ReduceOp op, std::string_view what);

// Throws kInvalidArgument if the sum behind an average of int64 might overflow, since no wider
// dtype is reduced. `type` is the tensor's own dtype. Values on a GPU are not checked, since the
// host does not wait for them.
void check_average(const at::Tensor& values, c10::ScalarType type, const RequestSpec& spec,
                   int ranks, std::string_view what);

// Returns the spec of a tensor in its transport dtype. Ranks must also agree on `type`, the
// tensor's own dtype. `what` is the same as in spec_of().
TensorSpec transport_spec_of(const at::Tensor& values, c10::ScalarType type, std::string_view what);

// Returns a result as a tensor that copy_() or to() converts to dtype `type`.
at::Tensor from_transport_dtype(const at::Tensor& values, c10::ScalarType type);

}  // namespace ciranda
