#include "ciranda/torch/gradient/rank_graph.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "ciranda/torch/tensor/error.h"
#include "core/base/assert.h"

namespace ciranda {

namespace {

using torch::autograd::variable_list;

std::atomic<int> steps_under_way = 0;

// Returns true in torch.autograd.grad(), which captures what backward() would leave in p.grad.
bool captures() {
  const auto* const nodes = torch::autograd::get_current_graph_task_exec_info();
  return nodes != nullptr && std::any_of(nodes->begin(), nodes->end(), [](const auto& entry) {
           return entry.second.captures_ != nullptr;
         });
}

class DerivativeRefusal final : public torch::autograd::FunctionPreHook {
 public:
  explicit DerivativeRefusal(std::string parameter) : parameter_(std::move(parameter)) {}

  variable_list operator()(const variable_list& gradients) override {
    if (steps_under_way.load() == 0 || !captures()) return gradients;
    throw Exception(
        {.code = ErrorCode::kUnsupported,
         .text = "DistributedOptimizer: step() differentiates the gradient of '" + parameter_ +
                 "', whose value is the average of all ranks, but whose graph is this rank's "
                 "alone, so the ranks would drift apart; compute what the optimizer needs before "
                 "step(), and average it with allreduce()"});
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

 private:
  const std::string parameter_;
};

}  // namespace

void refuse_derivatives_in_step(const at::Tensor& gradient, const std::string& parameter) {
  const auto node = gradient.grad_fn();
  if (node) node->add_tensor_pre_hook(std::make_unique<DerivativeRefusal>(parameter));
}

void begin_rank_step() {
  ++steps_under_way;
}

void end_rank_step() {
  const int before = steps_under_way--;
  CIRANDA_ASSERT(before > 0);  // by begin_rank_step()
}

}  // namespace ciranda
