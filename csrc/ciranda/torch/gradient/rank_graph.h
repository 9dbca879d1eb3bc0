#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace ciranda {

// Makes a derivative of a gradient an error while this rank's own step runs. A reduced p.grad has,
// after backward(create_graph=True), the value for all ranks but the graph of this rank alone. A
// second backward() is right, because it leaves gradients in p.grad, which are reduced again. The
// result of torch.autograd.grad() is this rank's own. An optimizer that uses it in step() would let
// the ranks drift apart. The error names `parameter`. Call this function once for each gradient.
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
