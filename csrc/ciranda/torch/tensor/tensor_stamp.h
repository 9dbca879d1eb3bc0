#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>

namespace ciranda {

// Records which object a tensor was, where its memory was and which version it had, to tell later
// whether that is still so. Keeps the tensor object allocated, so that no new tensor can have its
// address, but does not keep the tensor's memory alive.
class TensorStamp {
 public:
  TensorStamp() = default;  // stamp of an undefined tensor
  explicit TensorStamp(const at::Tensor& tensor) { renew(tensor); }
  // Equals `*this = TensorStamp(tensor)`, without a new weak reference if the object is the same.
  void renew(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      *this = TensorStamp();
      return;
    }
    if (tensor_._unsafe_get_target() != tensor.unsafeGetTensorImpl()) {
      tensor_ = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(
          tensor.getIntrusivePtr());
    }
    data_ = data_of(tensor);
    version_ = version_of(tensor);
  }

  // Returns true if the tensor is the same object in the same memory, or both are undefined.
  bool same_object(const at::Tensor& tensor) const {
    if (!tensor.defined()) return tensor_._unsafe_get_target() == nothing();
    return tensor_._unsafe_get_target() == tensor.unsafeGetTensorImpl() && data_ == data_of(tensor);
  }
  // Returns true if, in addition, the version shows no write since.
  bool same(const at::Tensor& tensor) const {
    return same_object(tensor) && (!tensor.defined() || version_ == version_of(tensor));
  }

 private:
  static const c10::TensorImpl* nothing() { return c10::UndefinedTensorImpl::singleton(); }
  static const void* data_of(const at::Tensor& tensor) {
    return tensor.has_storage() ? tensor.const_data_ptr() : nullptr;
  }
  static std::uint32_t version_of(const at::Tensor& tensor) {
    return tensor.is_inference()
               ? 0
               : tensor.unsafeGetTensorImpl()->version_counter().current_version();
  }

  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_{
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  const void* data_ = nullptr;
  std::uint32_t version_ = 0;
};

}  // namespace ciranda
