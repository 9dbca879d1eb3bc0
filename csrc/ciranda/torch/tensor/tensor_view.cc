#include "ciranda/torch/tensor/tensor_view.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "ciranda/torch/tensor/error.h"
#include "core/base/assert.h"

namespace ciranda {
namespace {

constexpr struct {
  c10::ScalarType torch;
  DType ours;
} kTypes[kDTypeCount] = {{c10::ScalarType::Byte, DType::kUInt8},
                         {c10::ScalarType::Char, DType::kInt8},
                         {c10::ScalarType::Int, DType::kInt32},
                         {c10::ScalarType::Long, DType::kInt64},
                         {c10::ScalarType::Half, DType::kFloat16},
                         {c10::ScalarType::BFloat16, DType::kBFloat16},
                         {c10::ScalarType::Float, DType::kFloat32},
                         {c10::ScalarType::Double, DType::kFloat64},
                         {c10::ScalarType::Float8_e4m3fn, DType::kFloat8E4M3},
                         {c10::ScalarType::Float8_e5m2, DType::kFloat8E5M2}};

// Every UserDType except kSame and kOther.
constexpr struct {
  c10::ScalarType torch;
  UserDType ours;
} kUserTypes[kUserDTypeCount - 2] = {{c10::ScalarType::Bool, UserDType::kBool},
                                     {c10::ScalarType::Short, UserDType::kInt16},
                                     {c10::ScalarType::UInt16, UserDType::kUInt16},
                                     {c10::ScalarType::UInt32, UserDType::kUInt32},
                                     {c10::ScalarType::UInt64, UserDType::kUInt64},
                                     {c10::ScalarType::Float8_e4m3fn, UserDType::kFloat8E4M3},
                                     {c10::ScalarType::Float8_e5m2, UserDType::kFloat8E5M2},
                                     {c10::ScalarType::Float8_e4m3fnuz, UserDType::kFloat8E4M3Fnuz},
                                     {c10::ScalarType::Float8_e5m2fnuz, UserDType::kFloat8E5M2Fnuz},
                                     {c10::ScalarType::Float8_e8m0fnu, UserDType::kFloat8E8M0Fnu},
                                     {c10::ScalarType::ComplexHalf, UserDType::kComplex32},
                                     {c10::ScalarType::ComplexFloat, UserDType::kComplex64},
                                     {c10::ScalarType::ComplexDouble, UserDType::kComplex128},
                                     {c10::ScalarType::Byte, UserDType::kUInt8},
                                     {c10::ScalarType::Char, UserDType::kInt8},
                                     {c10::ScalarType::Int, UserDType::kInt32}};

[[noreturn]] void refuse(std::string_view what, const std::string& why) {
  throw Exception({.code = ErrorCode::kInvalidArgument, .text = std::string(what) + ": " + why});
}

}  // namespace

std::optional<DType> find_dtype(c10::ScalarType type) {
  for (const auto& row : kTypes) {
    if (row.torch == type) return row.ours;
  }
  return std::nullopt;
}

DType dtype_of(c10::ScalarType type, std::string_view what) {
  if (const auto known = find_dtype(type)) return *known;
  refuse(what, "dtype " + std::string(c10::toString(type)) +
                   " is not supported; convert the tensor to one of uint8, int8, int32, int64, "
                   "float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2");
}

UserDType user_dtype_of(c10::ScalarType type, DType travels_as) {
  if (type == scalar_type(travels_as)) return UserDType::kSame;
  for (const auto& row : kUserTypes) {
    if (row.torch == type) return row.ours;
  }
  return UserDType::kOther;
}

c10::ScalarType scalar_type(DType dtype) {
  const auto& row = kTypes[static_cast<std::size_t>(dtype)];
  CIRANDA_ASSERT(row.ours == dtype);
  return row.torch;
}

bool has_memory(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return true;
  // Reading the data of a fake tensor's storage would warn or throw.
  return tensor.has_storage() && tensor.unsafeGetTensorImpl()
                                     ->unsafe_storage()
                                     .unsafeGetStorageImpl()
                                     ->_mutable_data_ptr_no_checks();
}

void check_device(c10::Device device, std::string_view what) {
  if (device.is_cpu() || device.is_cuda()) return;
  refuse(what,
         "the tensor is on " + device.str() +
             (device.is_meta() ? ", where tensors have no values; pass a tensor that has values"
                               : "; pass tensor.cpu(): ciranda knows the CPU and CUDA GPUs"));
}

c10::Device device_of(const std::vector<at::Tensor>& tensors, std::string_view what) {
  CIRANDA_ASSERT(!tensors.empty());
  const c10::Device device = tensors.front().device();
  for (const at::Tensor& tensor : tensors) {
    if (tensor.device() == device) continue;
    refuse(what, "one tensor is on " + device.str() + " and another on " + tensor.device().str() +
                     "; pass the tensors of each device in a separate call");
  }
  return device;
}

void check_memory(const at::Tensor& tensor, std::string_view what) {
  if (has_memory(tensor)) return;
  refuse(what,
         "the tensor has no memory of its own; pass tensor.to_local() if it is a DTensor, else a "
         "tensor that has values");
}

void check_usable(const at::Tensor& tensor, std::string_view what) {
  if (!tensor.defined()) refuse(what, "the tensor is undefined");
  if (tensor.layout() != c10::Layout::Strided) {
    refuse(what, "the tensor is sparse; pass tensor.to_dense()");
  }
  check_device(tensor.device(), what);
  if (tensor.is_cpu()) check_memory(tensor, what);  // start() checks the memory of a GPU
  if (!tensor.is_contiguous()) {
    refuse(what, "the tensor is not contiguous; pass tensor.contiguous()");
  }
  if (is_lazy(tensor)) {
    refuse(what, "the tensor is a lazily negated or conjugated view; pass tensor.clone()");
  }
}

TensorSpec spec_of(const at::Tensor& tensor, std::string_view what) {
  check_usable(tensor, what);
  return {.dtype = dtype_of(tensor.scalar_type(), what), .shape = tensor.sizes().vec()};
}

TensorSpec moved_spec_of(const at::Tensor& tensor, std::string_view what) {
  check_usable(tensor, what);
  const c10::ScalarType type = tensor.scalar_type();
  TensorSpec spec{.shape = tensor.sizes().vec()};
  const auto known = find_dtype(type);
  if (known && !is_float8(*known)) {  // only newer GPUs know float8
    spec.dtype = *known;
    return spec;
  }
  switch (c10::isQIntType(type) ? 0 : c10::elementSize(type)) {
    case 1:
      spec.dtype = DType::kUInt8;
      break;
    case 2:
      spec.dtype = DType::kFloat16;  // there is no integer of two bytes
      break;
    case 4:
      spec.dtype = DType::kInt32;
      break;
    case 16:
      spec.shape.push_back(2);
      [[fallthrough]];
    case 8:
      spec.dtype = DType::kInt64;
      break;
    default:
      refuse(what, "dtype " + std::string(c10::toString(type)) +
                       " cannot be sent between ranks; convert the tensor");
  }
  spec.user_dtype = user_dtype_of(type, spec.dtype);
  return spec;
}

bool is_lazy(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.is_conj() || tensor.is_neg());
}

at::Tensor resolved(const at::Tensor& tensor) {
  if (!is_lazy(tensor)) return tensor;
  const at::NoGradGuard no_grad;
  return tensor.resolve_conj().resolve_neg().contiguous();
}

void assign(const at::Tensor& target, const at::Tensor& values) {
  const c10::InferenceMode mode(target.is_inference());
  const at::NoGradGuard no_grad;
  target.copy_(values);
}

void mark_written(const at::Tensor& tensor) {
  // A tensor that was made in inference mode has no version counter.
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

std::vector<bool> overlapping_outputs(const std::vector<at::Tensor>& inputs,
                                      const std::vector<at::Tensor>& outputs) {
  struct Memory {
    std::uintptr_t begin, end;
    std::size_t member;
    bool written;
  };
  CIRANDA_ASSERT(inputs.size() == outputs.size());
  std::vector<bool> overlaps(outputs.size(), false);
  if (outputs.size() < 2) return overlaps;
  std::vector<Memory> ranges;
  const auto add = [&](const at::Tensor& tensor, std::size_t member, bool written) {
    const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
    if (tensor.nbytes() > 0) ranges.push_back({begin, begin + tensor.nbytes(), member, written});
  };
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    add(outputs[i], i, true);
    if (inputs[i].const_data_ptr() != outputs[i].const_data_ptr()) add(inputs[i], i, false);
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Memory& a, const Memory& b) { return a.begin < b.begin; });
  // Ranges that are connected only through a third range count as overlapping too. That is rare and
  // costs only a copy.
  for (std::size_t first = 0, last = 0; first < ranges.size(); first = last) {
    std::uintptr_t end = ranges[first].end;
    for (last = first + 1; last < ranges.size() && ranges[last].begin < end; ++last) {
      end = std::max(end, ranges[last].end);
    }
    if (last - first == 1) continue;
    for (std::size_t i = first; i < last; ++i) {
      if (ranges[i].written) overlaps[ranges[i].member] = true;
    }
  }
  return overlaps;
}

BackendId backend_of(c10::Device device, const BackendChoice& choice) {
  return device.is_cpu() ? choice.cpu : choice.gpu;
}

std::byte* data_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

}  // namespace ciranda
