#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace ciranda {

// Makes torch.autograd.grad() of `gradient` an error while this rank's own step runs. After
// backward(create_graph=True) a reduced p.grad has the value for all ranks, but the graph of this
// rank alone. torch.autograd.grad() would therefore return this rank's own derivative, and an
// optimizer that uses it in step() would let the ranks drift apart. A second backward() is allowed:
// it leaves gradients in p.grad, which are reduced again. The error names `parameter`. Call this
// function once for each gradient.
void refuse_derivatives_in_step(const at::Tensor& gradient, const std::string& parameter);

// Begin and end a step by this rank's own optimizer. Thread-safe.
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
