#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "core/wire/messages.h"

namespace ciranda {

// Dtypes that no backend reduces travel as another one, in which they are reduced: bool, int16 and
// uint16 as int32, uint32 as int64, float8 on the CPU as float32, complex numbers as their real and
// imaginary parts; and, for an average, whose sum may pass their limits, uint8 and int8 as int32,
// int32 as int64. What comes back is converted as torch's copy_() does: a bool is whether the
// result is other than zero, whole numbers wrap around, float8 is rounded once.
bool is_carried(const at::Tensor& tensor, ReduceOp op);

// What travels for the tensor. Throws kInvalidArgument where `op` makes no sense for its dtype.
at::Tensor carried(const at::Tensor& tensor, ReduceOp op, std::string_view what);

// kInvalidArgument where the sum of an average of int64 might pass its limits: nothing wider is
// reduced. Not on a GPU, whose values the host does not wait for.
void check_average(const at::Tensor& values, c10::ScalarType type, const RequestSpec& spec,
                   int ranks, std::string_view what);

// Of it: ranks agree on `type`, the tensor's own, as well. `what` as in spec_of().
TensorSpec carried_spec_of(const at::Tensor& values, c10::ScalarType type, std::string_view what);

// What came for a tensor of dtype `type`, for copy_() or to().
at::Tensor arrived(const at::Tensor& values, c10::ScalarType type);

}  // namespace ciranda
