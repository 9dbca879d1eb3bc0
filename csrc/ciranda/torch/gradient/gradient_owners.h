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

// Maps a parameter to the reducer that owns its gradient: the most recently registered live one, so
// that it is reduced exactly once. The process has one such object for each parameter, found by the
// tensor object. It lives as long as a reducer or a hook of the parameter does. Thread-safe.
//
// A hook tells the owner when autograd has accumulated the gradient. The hook sits on the
// parameter, also while the parameter is frozen, converted or moved to a device. A parameter has
// room for one such hook. If the user has one there, ours sits on the gradient accumulator instead.
// A conversion gives the parameter a new accumulator, so a hook of another kind runs before the
// accumulator and puts our hook on it. If the user has a hook of that kind too, ours cannot be
// there, and hook() is called in each step.
class GradientOwners : public std::enable_shared_from_this<GradientOwners> {
 public:
  static std::shared_ptr<GradientOwners> of(const at::Tensor& parameter);
  ~GradientOwners();
  GradientOwners(const GradientOwners&) = delete;
  GradientOwners& operator=(const GradientOwners&) = delete;

  // Makes `reducer` the owner from now on; it knows the parameter as `position`. Tells the previous
  // owner, for which the parameter is then foreign.
  void add(const std::shared_ptr<GradientReducer>& reducer, std::size_t position) EXCLUDES(mutex_);
  // Removes a reducer that ends. Tells the latest remaining one, if any, which is the owner now.
  void remove(const GradientReducer* reducer) EXCLUDES(mutex_);
  std::shared_ptr<GradientReducer> owner() EXCLUDES(mutex_);
  // Tells the owner that another reducer discards the gradient, which then no longer counts as
  // reduced.
  void forget() EXCLUDES(mutex_);

  // Puts the hook where it belongs and returns the parameter's accumulator; null while the
  // parameter is frozen.
  GradientAccumulator hook(const at::Tensor& parameter) EXCLUDES(mutex_);
  // Returns true if the parameter itself has the hook, so that hook() has nothing to do.
  bool settled() const { return settled_.load(std::memory_order_relaxed); }

 private:
  friend class AccumulatorHook;
  friend class AccumulatorHooker;
  friend class ParameterHook;
  struct Owner {
    std::weak_ptr<GradientReducer> reducer;
    const GradientReducer* address = nullptr;  // valid also while the reducer is being destroyed
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
  // Copies the latest owner into the hook on the parameter.
  void tell_hook() REQUIRES(mutex_);
  // Returns the latest live owner and the parameter's position there.
  std::pair<std::shared_ptr<GradientReducer>, std::size_t> top() REQUIRES(mutex_);
  std::pair<std::shared_ptr<GradientReducer>, std::size_t> latest() EXCLUDES(mutex_);

  const Key parameter_;
  // One mutex for all parameters, so that each hook finds it in the cache.
  static inline Mutex mutex_;
  c10::SmallVector<Owner, 1> owners_ GUARDED_BY(mutex_);  // nearly always one: no allocation
  const torch::autograd::Node* hooked_ GUARDED_BY(mutex_) = nullptr;  // the one with our hook
  std::atomic<bool> settled_ = false;
  ParameterHook* parameter_hook_ GUARDED_BY(mutex_) = nullptr;
  bool has_hooker_ GUARDED_BY(mutex_) = false;
};

}  // namespace ciranda
