#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "core/base/mutex.h"

namespace ciranda {

class GradientReducer;
class ParameterHook;

// The pointer type differs between versions of torch.
using GradientAccumulator =
    decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

// Who reduces the gradient of a parameter: of all living reducers that know it the latest, so that
// it is reduced once. One for each parameter of the process, found by the tensor object; lives as
// long as a reducer or a hook of the parameter does. Thread-safe.
//
// A hook tells that reducer when autograd has accumulated the gradient. It sits on the parameter,
// also while that is frozen, converted or moved to a device. There is room for one: where the user
// has such a hook of his own, ours sits on the gradient accumulator. A converted parameter leaves
// that behind; a hook of another kind, before the accumulator, sees to the new one. Where the user
// has one of those too it cannot: hook() is called in each step.
class GradientOwners : public std::enable_shared_from_this<GradientOwners> {
 public:
  static std::shared_ptr<GradientOwners> of(const at::Tensor& parameter);
  ~GradientOwners();
  GradientOwners(const GradientOwners&) = delete;
  GradientOwners& operator=(const GradientOwners&) = delete;

  // The owner from here on; it knows the parameter as `position`. Tells the one before.
  void add(const std::shared_ptr<GradientReducer>& reducer, std::size_t position) EXCLUDES(mutex_);
  // The reducer ends. Tells the one before it, if that lives.
  void remove(const GradientReducer* reducer) EXCLUDES(mutex_);
  std::shared_ptr<GradientReducer> owner() EXCLUDES(mutex_);
  // The gradient is thrown away by one that is not the owner.
  void forget() EXCLUDES(mutex_);

  // The parameter's accumulator, with the hook on it; null while the parameter is frozen.
  GradientAccumulator hook(const at::Tensor& parameter) EXCLUDES(mutex_);
  // hook() has nothing to do: the parameter itself has the hook.
  bool settled() const { return settled_.load(std::memory_order_relaxed); }

 private:
  friend class AccumulatorHook;
  friend class AccumulatorHooker;
  friend class ParameterHook;
  struct Owner {
    std::weak_ptr<GradientReducer> reducer;
    const GradientReducer* address = nullptr;  // also while it is being destroyed
    std::size_t position = 0;
  };
  using Key = const c10::TensorImpl*;

  explicit GradientOwners(const at::Tensor& parameter)
      : parameter_(parameter.unsafeGetTensorImpl()) {}
  void on_gradient_ready(const ParameterHook& hook) EXCLUDES(mutex_);
  void on_gradient_ready() EXCLUDES(mutex_);
  void accumulator_ends(const torch::autograd::Node* accumulator) EXCLUDES(mutex_);
  void parameter_unhooked(c10::TensorImpl* parameter) EXCLUDES(mutex_);
  void hooker_ends() EXCLUDES(mutex_);
  // What the hook on the parameter knows of the owners follows what is known here.
  void tell_hook() REQUIRES(mutex_);
  // The latest that lives, and the parameter's position there.
  std::pair<std::shared_ptr<GradientReducer>, std::size_t> top() REQUIRES(mutex_);
  std::pair<std::shared_ptr<GradientReducer>, std::size_t> latest() EXCLUDES(mutex_);

  const Key parameter_;
  // One for all parameters, which each hook finds in the cache.
  static inline Mutex mutex_;
  c10::SmallVector<Owner, 1> owners_ GUARDED_BY(mutex_);  // nearly always one: no other memory
  const torch::autograd::Node* hooked_ GUARDED_BY(mutex_) = nullptr;  // the accumulator with a hook
  std::atomic<bool> settled_ = false;
  ParameterHook* parameter_hook_ GUARDED_BY(mutex_) = nullptr;
  bool has_hooker_ GUARDED_BY(mutex_) = false;
};

}  // namespace ciranda
