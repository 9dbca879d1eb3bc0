#include "torch/ps_differences.h"

#include <utility>

#include "torch/error.h"
#include "torch/tensor_view.h"

namespace ciranda {
namespace {

// What is subtracted from the parameters as it is.
const kernels::UpdateRule kSubtract{.kind = kernels::RuleKind::kSgd, .lr = 1.0};

}  // namespace

PsDifferences::PsDifferences(std::shared_ptr<ps::Client> client, ps::Mode mode)
    : client_(std::move(client)), parameters_(client_, mode, /*apart=*/false) {
  check_mode(mode, client_->workers());
}

void PsDifferences::add_parameters(NamedParameters parameters) {
  const MutexLock lock(mutex_);
  refuse_second_model(*client_);
  const std::vector<std::size_t> one_group(parameters.size());
  parameters_.declare(std::move(parameters), one_group, {&kSubtract, 1});
  for (const ServedParameters::Slot& slot : parameters_.slots()) {
    before_.push_back(parameters_.gradient_memory(slot));
  }
}

void PsDifferences::begin() {
  const MutexLock lock(mutex_);
  parameters_.refuse_changes();
  for (std::size_t i = 0; i < before_.size(); ++i) {
    assign(before_[i], parameters_.slots()[i].parameter.detach());
  }
}

void PsDifferences::push() {
  const MutexLock lock(mutex_);
  for (std::size_t i = 0; i < before_.size(); ++i) {
    const at::Tensor now = parameters_.slots()[i].parameter.detach();
    before_[i].sub_(now.is_cpu() ? now : now.cpu());
  }
  check(client_->push(parameters_.shown(), 1.0,
                      std::vector<kernels::UpdateRule>(parameters_.tables(), kSubtract),
                      std::vector<bool>(before_.size(), true)));
  unwrap(client_->answer());
  parameters_.show();
}

void PsDifferences::pull() {
  const MutexLock lock(mutex_);
  parameters_.refuse_changes();
  check(client_->pull());
  parameters_.show();
}

std::shared_ptr<PsDifferences> make_ps_differences(ps::Mode mode) {
  auto differences = std::make_shared<PsDifferences>(servers("DistributedOptimizer"), mode);
  set_puller(differences);
  return differences;
}

}  // namespace ciranda
