#include "torch/tensor_view.h"

#include <string>

#include "torch/error.h"

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

c10::ScalarType scalar_type(DType dtype) {
  return kTypes[static_cast<std::size_t>(dtype)].torch;
}

void check_device(c10::Device device, std::string_view what) {
  if (device.is_cpu() || device.is_cuda()) return;
  refuse(what, "the tensor is on " + device.str() +
                   (device.is_meta() ? ", where no tensor has values; pass one that has"
                                     : "; pass tensor.cpu(), ciranda knows the CPU and CUDA GPUs"));
}

c10::Device device_of(const std::vector<at::Tensor>& tensors, std::string_view what) {
  const c10::Device device = tensors.front().device();
  for (const at::Tensor& tensor : tensors) {
    if (tensor.device() == device) continue;
    refuse(what, "one tensor is on " + device.str() + " and another on " + tensor.device().str() +
                     "; pass those of each device in a call of their own");
  }
  return device;
}

void check_usable(const at::Tensor& tensor, std::string_view what) {
  if (!tensor.defined()) refuse(what, "the tensor is undefined");
  if (tensor.layout() != c10::Layout::Strided) {
    refuse(what, "the tensor is sparse; pass tensor.to_dense()");
  }
  check_device(tensor.device(), what);
  if (!tensor.is_contiguous()) {
    refuse(what, "the tensor is not contiguous; pass tensor.contiguous()");
  }
  if (tensor.is_neg() || tensor.is_conj()) {
    // Its memory holds other numbers than it shows.
    refuse(what, "the tensor is a lazily negated or conjugated view; pass tensor.clone()");
  }
}

TensorSpec spec_of(const at::Tensor& tensor, std::string_view what) {
  check_usable(tensor, what);
  return {.dtype = dtype_of(tensor.scalar_type(), what), .shape = tensor.sizes().vec()};
}

BackendId backend_of(c10::Device device, const Operations& operations) {
  return device.is_cpu() ? operations.cpu : operations.gpu;
}

std::byte* data_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

}  // namespace ciranda
