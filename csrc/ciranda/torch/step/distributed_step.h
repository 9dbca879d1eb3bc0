#pragma once

#include <ciranda/torch.h>

#include <functional>
#include <memory>
#include <string>

#include "ciranda/torch/step/step_types.h"

namespace ciranda {

// The implementation of a DistributedOptimizer, with DistributedStep's methods. The subclasses
// differ in who reduces the gradients.
class DistributedStep::Impl {
 public:
  Impl() = default;
  virtual ~Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  virtual void synchronize() = 0;
  virtual torch::Tensor step(const Closure& closure, const InnerStep& inner) = 0;
  virtual void forget_gradients() = 0;
  virtual void adopt_param_group() = 0;
  virtual void adopt_state() = 0;
  virtual void save(const std::function<void()>& inner) = 0;
  virtual double grad_norm() const = 0;
  virtual const std::string& why_not_shared() const = 0;
};

// Returns the parameters of an optimizer's parameter groups, in their order.
std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer);
// Returns for each of `parameters` the number of its parameter group.
std::vector<std::size_t> groups_of(const torch::optim::Optimizer& optimizer,
                                   const NamedParameters& parameters);

// Makes the implementation for a job with parameter servers. Throws kInvalidArgument in any other
// job.
std::unique_ptr<DistributedStep::Impl> make_served_step(torch::optim::Optimizer& optimizer,
                                                        const std::type_info& type,
                                                        const NamedParameters& named_parameters,
                                                        const DistributedOptions& options);

}  // namespace ciranda
