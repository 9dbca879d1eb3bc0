#include "ciranda/torch/servers/ps_gradients.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/tensor_view.h"
#include "core/base/assert.h"

namespace ciranda {
namespace {

// The parameters' rule; no push updates them.
const kernels::UpdateRule kNone{.kind = kernels::RuleKind::kSgd, .lr = 0.0};

}  // namespace

PsGradients::PsGradients(std::shared_ptr<ps::Client> client)
    : client_(std::move(client)), parameters_(client_, {}, /*apart=*/false) {}

void PsGradients::add_parameters(NamedParameters parameters) {
  const MutexLock lock(mutex_);
  refuse_second_model(*client_);
  const std::vector<std::size_t> one_group(parameters.size());
  parameters_.declare(std::move(parameters), one_group, {&kNone, 1});
  for (const ServedParameters::Slot& slot : parameters_.slots()) {
    pushed_.push_back(parameters_.gradient_memory(slot));
  }
}

void PsGradients::push(ps::VectorId into) {
  const MutexLock lock(mutex_);
  const at::NoGradGuard no_grad;
  parameters_.refuse_changes();
  const auto& slots = parameters_.slots();
  CIRANDA_ASSERT(pushed_.size() == slots.size());
  std::vector<bool> used(slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const at::Tensor& gradient = slots[i].parameter.grad();
    if (!gradient.defined()) continue;
    assign(pushed_[i], gradient.layout() == c10::Layout::Strided ? gradient : gradient.to_dense());
    used[slots[i].position] = true;
  }
  check(client_->parameters().push(parameters_.versions(), 1.0,
                                   std::vector<kernels::UpdateRule>(parameters_.tables(), kNone),
                                   std::move(used), into));
  unwrap(client_->parameters().answer());
  parameters_.show();
}

void PsGradients::pull() {
  const MutexLock lock(mutex_);
  parameters_.pull();
}

std::shared_ptr<PsGradients> make_ps_gradients() {
  auto gradients = std::make_shared<PsGradients>(worker_of_servers("Sandblaster"));
  set_puller(gradients);
  return gradients;
}

}  // namespace ciranda
