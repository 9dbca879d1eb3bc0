#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/engine/run/backends.h"
#include "core/wire/messages.h"

namespace ciranda {

// From torch's tensors to raw memory and back.

// Nothing when `type` is none of ours.
std::optional<DType> find_dtype(c10::ScalarType type);
// kInvalidArgument names the tensor and the dtype when `type` is none of ours.
DType dtype_of(c10::ScalarType type, std::string_view tensor);
// What ranks are to agree on besides `travels_as`.
UserDType user_dtype_of(c10::ScalarType type, DType travels_as);
c10::ScalarType scalar_type(DType dtype);

// Its elements lie where it says: not those of a DTensor or a fake tensor, nor what was freed.
bool has_memory(const at::Tensor& tensor);

// A dense contiguous tensor on a CUDA GPU, or on the CPU with memory, that is not lazy, or
// kInvalidArgument with a sentence that says what to do. `what` names operation and tensor:
// "allreduce 'x'".
void check_usable(const at::Tensor& tensor, std::string_view what);
// The same of its memory, and of its device, alone.
void check_memory(const at::Tensor& tensor, std::string_view what);
void check_device(c10::Device device, std::string_view what);
// The one device of all of them, which are usable; kInvalidArgument if there are two.
c10::Device device_of(const std::vector<at::Tensor>& tensors, std::string_view what);

TensorSpec spec_of(const at::Tensor& tensor, std::string_view what);
// Of operations that only move bytes, which take any dtype: what the engine does not know travels
// as integers of its size.
TensorSpec moved_spec_of(const at::Tensor& tensor, std::string_view what);

// Its memory holds other numbers than it shows: a lazily negated or conjugated view.
bool is_lazy(const at::Tensor& tensor);
// The tensor itself, or a contiguous copy of a lazy one.
at::Tensor resolved(const at::Tensor& tensor);
// target.copy_(values), also where `target` requires grad or was made in inference mode.
void assign(const at::Tensor& target, const at::Tensor& values);
// Lets autograd see that the tensor was written, as torch's operations in place do: a backward that
// needs the old values raises.
void mark_written(const at::Tensor& tensor);
// Which outputs lie in memory of another member of the group; outputs[i] may be inputs[i]. All of
// them are contiguous.
std::vector<bool> overlapping_outputs(const std::vector<at::Tensor>& inputs,
                                      const std::vector<at::Tensor>& outputs);

// What runs operations on memory of the device.
BackendId backend_of(c10::Device device, const BackendChoice& choice);

// The tensor's memory.
std::byte* data_of(const at::Tensor& tensor);

}  // namespace ciranda
