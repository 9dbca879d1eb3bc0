#include "ciranda/torch/gradient/gradient_owners.h"

#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <unordered_map>

#include "ciranda/torch/gradient/gradient_reducer.h"
#include "ciranda/torch/process/default_world.h"
#include "core/base/assert.h"

namespace ciranda {

using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

// This registry is never destroyed, because tensors may outlive static objects.
struct Registry {
  Mutex mutex;
  std::unordered_map<const c10::TensorImpl*, std::weak_ptr<GradientOwners>> owners
      GUARDED_BY(mutex);
};

Registry& registry() {
  static Registry& registry = *new Registry;
  return registry;
}

at::Tensor tensor_of(c10::TensorImpl* alive) {
  return at::Tensor(
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(alive));
}

}  // namespace

// Compiled autograd runs neither this hook nor AccumulatorHook. synchronize() and step() then find
// the gradients themselves.
class ParameterHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  ParameterHook(std::shared_ptr<GradientOwners> owners, c10::TensorImpl* parameter)
      : owners_(std::move(owners)), parameter_(parameter) {}
  ~ParameterHook() override { owners_->parameter_unhooked(parameter_); }

  void operator()(const torch::autograd::Variable& /*parameter*/) override {
    owners_->on_gradient_ready(*this);
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}
  void apply_with_saved(torch::autograd::Variable&,
                        torch::dynamo::autograd::SwapSavedVariables&) override {}

 private:
  friend class GradientOwners;
  // The latest owner, also stored here: with hundreds of small parameters, each cache line that a
  // hook waits for shows in the time of the step. Guarded by the mutex of GradientOwners.
  std::weak_ptr<GradientReducer> reducer_;
  std::size_t position_ = 0;
  const std::shared_ptr<GradientOwners> owners_;
  c10::TensorImpl* const parameter_;  // holds this hook
};

class AccumulatorHook final : public torch::autograd::FunctionPostHook {
 public:
  AccumulatorHook(std::shared_ptr<GradientOwners> owners, const Node* accumulator)
      : owners_(std::move(owners)), accumulator_(accumulator) {}
  ~AccumulatorHook() override { owners_->accumulator_ends(accumulator_); }

  variable_list operator()(const variable_list& outputs, const variable_list& /*inputs*/) override {
    owners_->on_gradient_ready();
    return outputs;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

 private:
  const std::shared_ptr<GradientOwners> owners_;
  const Node* const accumulator_;
};

// Runs before the accumulator, and makes sure that our hook is on it.
class AccumulatorHooker final : public torch::autograd::FunctionPreHook {
 public:
  AccumulatorHooker(std::shared_ptr<GradientOwners> owners, c10::TensorImpl* parameter)
      : owners_(std::move(owners)), parameter_(parameter) {}
  ~AccumulatorHooker() override { owners_->hooker_ends(); }

  variable_list operator()(const variable_list& gradients) override {
    owners_->hook(tensor_of(parameter_));  // the parameter holds this hook, so it lives
    return gradients;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

 private:
  const std::shared_ptr<GradientOwners> owners_;
  c10::TensorImpl* const parameter_;
};

std::shared_ptr<GradientOwners> GradientOwners::of(const at::Tensor& parameter) {
  const Key key = parameter.unsafeGetTensorImpl();
  Registry& known = registry();
  const MutexLock lock(known.mutex);
  std::weak_ptr<GradientOwners>& entry = known.owners[key];
  auto owners = entry.lock();
  if (owners == nullptr) {
    owners.reset(new GradientOwners(parameter));
    entry = owners;
  }
  return owners;
}

GradientOwners::~GradientOwners() {
  Registry& known = registry();
  const MutexLock lock(known.mutex);
  const auto entry = known.owners.find(parameter_);
  if (entry != known.owners.end() && entry->second.expired()) known.owners.erase(entry);
}

void GradientOwners::add(const std::shared_ptr<GradientReducer>& reducer, std::size_t position) {
  std::pair<std::shared_ptr<GradientReducer>, std::size_t> before;
  {
    const MutexLock lock(mutex_);
    before = top();
    owners_.push_back({.reducer = reducer, .address = reducer.get(), .position = position});
    tell_hook();
  }
  if (!before.first) return;
  before.first->set_foreign(before.second, true);
  before.first->link(reducer);
  reducer->link(before.first);
}

void GradientOwners::remove(const GradientReducer* reducer) {
  if (in_forked_child()) return;
  std::pair<std::shared_ptr<GradientReducer>, std::size_t> now;
  {
    const MutexLock lock(mutex_);
    const auto ends = [&](const Owner& owner) { return owner.address == reducer; };
    owners_.erase(std::remove_if(owners_.begin(), owners_.end(), ends), owners_.end());
    tell_hook();
    now = top();
  }
  if (now.first) now.first->set_foreign(now.second, false);
}

void GradientOwners::tell_hook() {
  if (parameter_hook_ == nullptr) return;
  const Owner latest = owners_.empty() ? Owner{} : owners_.back();
  parameter_hook_->reducer_ = latest.reducer;
  parameter_hook_->position_ = latest.position;
}

std::pair<std::shared_ptr<GradientReducer>, std::size_t> GradientOwners::top() {
  for (auto owner = owners_.rbegin(); owner != owners_.rend(); ++owner) {
    if (auto reducer = owner->reducer.lock()) return {std::move(reducer), owner->position};
  }
  return {};
}

std::pair<std::shared_ptr<GradientReducer>, std::size_t> GradientOwners::latest() {
  const MutexLock lock(mutex_);
  return top();
}

std::shared_ptr<GradientReducer> GradientOwners::owner() {
  return latest().first;
}

void GradientOwners::forget() {
  if (const auto [reducer, position] = latest(); reducer) reducer->forget(position);
}

void GradientOwners::on_gradient_ready(const ParameterHook& hook) {
  if (in_forked_child()) return;  // the child's own backward pass
  std::shared_ptr<GradientReducer> reducer;
  std::size_t position = 0;
  {
    const MutexLock lock(mutex_);
    reducer = hook.reducer_.lock();
    position = hook.position_;
  }
  if (reducer) {
    reducer->on_gradient_ready(position);
  } else {
    on_gradient_ready();  // that reducer is being destroyed
  }
}

void GradientOwners::on_gradient_ready() {
  if (in_forked_child()) return;
  if (const auto [reducer, position] = latest(); reducer) reducer->on_gradient_ready(position);
}

void GradientOwners::accumulator_ends(const Node* accumulator) {
  if (in_forked_child()) return;  // where the mutex may be held for ever
  const MutexLock lock(mutex_);
  if (hooked_ == accumulator) hooked_ = nullptr;
}

// The hook ends because a hook of the user replaces it, after which backward may continue, or
// because the parameter ends.
void GradientOwners::parameter_unhooked(c10::TensorImpl* parameter) {
  if (in_forked_child()) return;
  {
    const MutexLock lock(mutex_);
    parameter_hook_ = nullptr;
    settled_ = false;
  }
  const auto reducer = owner();
  if (c10::raw::intrusive_ptr::use_count(parameter) == 0 || !reducer) return;
  hook(tensor_of(parameter));
  reducer->look_for_hooks();
}

void GradientOwners::hooker_ends() {
  if (in_forked_child()) return;
  const MutexLock lock(mutex_);
  has_hooker_ = false;
}

GradientAccumulator GradientOwners::hook(const at::Tensor& parameter) {
  CIRANDA_ASSERT(parameter.unsafeGetTensorImpl() == parameter_);
  if (in_forked_child()) return {};
  const MutexLock lock(mutex_);
  const auto* const meta = torch::autograd::impl::materialize_autograd_meta(parameter);
  const bool room = meta->post_acc_grad_hooks_ == nullptr;
  if (parameter_hook_ == nullptr && hooked_ == nullptr && room) {
    auto hook =
        std::make_unique<ParameterHook>(shared_from_this(), parameter.unsafeGetTensorImpl());
    parameter_hook_ = hook.get();
    tell_hook();
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::move(hook));
  }
  settled_ = parameter_hook_ != nullptr;
  if (!parameter.requires_grad()) return {};
  auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
  if (parameter_hook_ != nullptr) return accumulator;
  // A parameter has room for one of these too: the user's hooks have precedence, and adding one
  // removes ours.
  if (!has_hooker_ && torch::autograd::impl::hooks(parameter).empty()) {
    torch::autograd::impl::add_hook(
        parameter,
        std::make_unique<AccumulatorHooker>(shared_from_this(), parameter.unsafeGetTensorImpl()));
    has_hooker_ = true;
  }
  if (hooked_ != accumulator.get()) {
    hooked_ = accumulator.get();
    accumulator->add_post_hook(
        std::make_unique<AccumulatorHook>(shared_from_this(), accumulator.get()));
  }
  return accumulator;
}

}  // namespace ciranda
