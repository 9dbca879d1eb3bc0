#include "ciranda/torch/servers/ps_differences.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <utility>

#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/tensor_view.h"
#include "core/base/assert.h"

namespace ciranda {
namespace {

// Subtracts the pushed values from the parameters, unscaled.
const kernels::UpdateRule kSubtract{.kind = kernels::RuleKind::kSgd, .lr = 1.0};

}  // namespace

PsDifferences::PsDifferences(std::shared_ptr<ps::Client> client, Options options)
    : client_(std::move(client)),
      options_(options),
      parameters_(client_, options.mode, /*apart=*/options.period > 0) {
  check_mode(options.mode, client_->workers());
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
  for (std::size_t i = 0; i < before_.size() && !is_elastic(); ++i) {
    assign(before_[i], parameters_.slots()[i].parameter.detach());
  }
}

void PsDifferences::push(std::span<const double> rates) {
  const MutexLock lock(mutex_);
  if (is_elastic()) {
    parameters_.keep();
    if (++steps_ >= options_.period) come_nearer(rates);
    return;
  }
  for (std::size_t i = 0; i < before_.size(); ++i) {
    const at::Tensor now = parameters_.slots()[i].parameter.detach();
    before_[i].sub_(now.is_cpu() ? now : now.cpu());
  }
  send(parameters_.versions());
  parameters_.show();
}

void PsDifferences::send(std::span<const std::uint64_t> versions) {
  check(client_->parameters().push(
      versions, 1.0, std::vector<kernels::UpdateRule>(parameters_.tables(), kSubtract),
      std::vector<bool>(before_.size(), true)));
  unwrap(client_->parameters().answer());
}

void PsDifferences::come_nearer(std::span<const double> rates) {
  const at::NoGradGuard no_grad;
  const auto& slots = parameters_.slots();
  CIRANDA_ASSERT(rates.size() == slots.size() && before_.size() == slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (options_.rho * rates[i] <= 1.0) continue;
    throw Exception(
        {.code = ErrorCode::kInvalidArgument,
         .text = c10::str("DistributedOptimizer: EASGD's rho times the learning rate of "
                          "parameter '",
                          slots[i].name, "' is ", options_.rho * rates[i],
                          ", but must be at most 1: it is the share of their distance by which the "
                          "worker's and the servers' parameter approach each other")});
  }
  steps_ = 0;
  check(client_->parameters().pull());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const at::Tensor own = slots[i].parameter.detach();
    at::Tensor pushed = before_[i];
    assign(pushed, slots[i].value);
    pushed.sub_(own.is_cpu() ? own : own.cpu()).mul_(options_.rho * rates[i]);
    own.add_(own.is_cpu() ? pushed : pushed.to(own.device()));
  }
  parameters_.keep();
  send(client_->parameters().versions());
}

void PsDifferences::pull() {
  const MutexLock lock(mutex_);
  parameters_.pull();
}

void PsDifferences::begin_task() {
  if (!is_elastic()) pull();
}

std::shared_ptr<PsDifferences> make_ps_differences(PsDifferences::Options options) {
  auto differences =
      std::make_shared<PsDifferences>(worker_of_servers("DistributedOptimizer"), options);
  set_puller(differences);
  return differences;
}

}  // namespace ciranda
