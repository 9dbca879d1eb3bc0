#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace ciranda {

// After backward(create_graph=True) a reduced p.grad has the value of all ranks, but its graph is
// this rank's alone. A second backward() is right: it leaves gradients in p.grad, which are reduced
// again. What torch.autograd.grad() gives of it is this rank's own. An optimizer whose step() uses
// that would leave the ranks apart: while a rank's own step is under way it is an error that names
// `parameter`. Call it once for each gradient.
void refuse_derivatives_in_step(const at::Tensor& gradient, const std::string& parameter);

// A rank's optimizer begins, ends its own step, in any thread.
void begin_rank_step();
void end_rank_step();

class RankStepScope {
 public:
  RankStepScope() { begin_rank_step(); }
  ~RankStepScope() { end_rank_step(); }
  RankStepScope(const RankStepScope&) = delete;
  RankStepScope& operator=(const RankStepScope&) = delete;
};

}  // namespace ciranda
