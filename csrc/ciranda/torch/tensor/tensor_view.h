#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/engine/run/backends.h"
#include "core/wire/messages.h"

namespace ciranda {

// Conversions between torch's tensors and raw memory.

// Returns nullopt if ciranda has no dtype for `type`.
std::optional<DType> find_dtype(c10::ScalarType type);
// Throws kInvalidArgument, naming the tensor and the dtype, if ciranda has no dtype for `type`.
DType dtype_of(c10::ScalarType type, std::string_view tensor);
// Returns what ranks must agree on besides `travels_as`.
UserDType user_dtype_of(c10::ScalarType type, DType travels_as);
c10::ScalarType scalar_type(DType dtype);

// Returns true if the elements lie in the tensor's storage. The result is false for a DTensor, a
// fake tensor and freed memory.
bool has_memory(const at::Tensor& tensor);

// Throws kInvalidArgument unless the tensor is dense, contiguous and not lazy, and either on a CUDA
// GPU or in memory of the CPU. The error says what to do. `what` names operation and tensor:
// "allreduce 'x'".
void check_usable(const at::Tensor& tensor, std::string_view what);
// Check only the memory, and only the device, as check_usable() does.
void check_memory(const at::Tensor& tensor, std::string_view what);
void check_device(c10::Device device, std::string_view what);
// Returns the device of usable tensors, at least one. Throws kInvalidArgument if they are on two.
c10::Device device_of(const std::vector<at::Tensor>& tensors, std::string_view what);

TensorSpec spec_of(const at::Tensor& tensor, std::string_view what);
// Returns the spec for an operation that only moves bytes. A dtype that the engine cannot move
// travels as another one of the same size.
TensorSpec moved_spec_of(const at::Tensor& tensor, std::string_view what);

// Returns true for a lazily negated or conjugated view: its memory holds other numbers than the
// tensor shows.
bool is_lazy(const at::Tensor& tensor);
// Returns the tensor itself, or a contiguous copy if it is lazy.
at::Tensor resolved(const at::Tensor& tensor);
// Does target.copy_(values), also if `target` requires grad or was made in inference mode.
void assign(const at::Tensor& target, const at::Tensor& values);
// Tells autograd that the tensor was written, as torch's in-place operations do: a backward that
// needs the old values raises.
void mark_written(const at::Tensor& tensor);
// Returns for each output whether it overlaps memory of another member of the list. outputs[i] may
// be inputs[i]. All tensors are contiguous.
std::vector<bool> overlapping_outputs(const std::vector<at::Tensor>& inputs,
                                      const std::vector<at::Tensor>& outputs);

// Returns the backend that runs operations on memory of the device.
BackendId backend_of(c10::Device device, const BackendChoice& choice);

// Returns the tensor's memory, for writing.
std::byte* data_of(const at::Tensor& tensor);

}  // namespace ciranda
