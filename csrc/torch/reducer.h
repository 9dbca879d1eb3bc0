#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/kernels/update_rule.h"
#include "core/runtime/engine.h"
#include "torch/optimizer_state.h"

namespace ciranda {

using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

// What an optimizer needs of whoever reduces the gradients of its parameters.
//
// Thread-safe: calls wait for each other. Throws Exception: whatever ends an operation of the
// engine (kRankLost, kMismatch, …), and what a method names. A collective method is called by all
// ranks that train together, and blocks until they have; no other one blocks.
class Reducer {
 public:
  Reducer() = default;
  virtual ~Reducer() = default;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // In the order of registration, on every rank the same; positions go on from those added before.
  // Frozen parameters get their place when they are unfrozen. Call once after construction, again
  // for add_param_group. Those of one `rule` are stepped by set_rule(rule); no rules without a
  // shared step. Collective with a shared step. kInvalidArgument for a dtype that is not floating.
  virtual void add_parameters(NamedParameters parameters, std::vector<std::size_t> rules) = 0;
  // From here on, also in the step that has begun.
  virtual void set_backward_passes_per_step(int passes) = 0;

  // p.grad holds the reduced gradients of this step. Collective. Throws what went wrong in
  // backward(); kInvalidArgument if a gradient was replaced after it had been summed.
  virtual void synchronize() = 0;
  // Before that, in a step: runs `wait`, which blocks for other ranks and calls what it is given
  // meanwhile, so that none of them waits in backward() for this one.
  using Wait = std::function<void(const Engine::Look&)>;
  virtual void wait_in_step(const Wait& wait) { wait({}); }
  // The optimizer has stepped: passes from here on belong to a new step.
  virtual void finish_step() = 0;
  // The user throws the gradients away: a new step begins, also in the middle of one. Finishes what
  // a backward pass that raised has begun, whose memory other ranks may still read: collective
  // then. Throws what went wrong in backward(), unless that was about the gradients alone.
  virtual void settle() = 0;

  // Of a shared step, where the reducer has the optimizer's state and steps in its place:

  // The update rule of parameters added with this number, from the next step() on.
  virtual void set_rule(std::size_t number, const kernels::UpdateRule& rule) = 0;
  // Before each step, also one that the ranks do not share any more: who had joined hears of that.
  // Collective the first time, and the first time after each join.
  virtual void agree() = 0;
  // The optimizer's step on all parameters that any rank has a gradient for. Collective. Gradients
  // are multiplied by `gradient_scale`. Without `reduce` each rank's p.grad counts as reduced
  // already. With max_norm > 0 the gradients are clipped to that global 2-norm; norm() is what it
  // was before.
  //
  // If a rank has a reason against sharing the step, in words as the rest of a sentence
  // (`objection`, or one that is found here: a parameter that was moved), no rank shares it from
  // here on: nothing was updated, p.grad is the reduced gradient, and each rank goes on with a step
  // of its own once it has taken its state(). With share_parameters that is kInvalidArgument.
  // Throws what synchronize() does.
  struct StepOutcome {
    std::string why_not_shared = {};  // the reason, with its rank; empty if the step is done
    // Positions of those whose state is new, also from steps while this rank had joined.
    std::vector<std::size_t> fresh = {};
  };
  virtual StepOutcome step(double gradient_scale, bool reduce, double max_norm,
                           const std::string& objection) = 0;
  // Of the latest step that was clipped; 0 before.
  virtual double norm() = 0;
  // The state of the parameter at a position, see SharedStep: views of the shared memory, or
  // copies.
  virtual OptimizerState state(std::size_t position, bool copies) = 0;
  // State that comes from elsewhere, for all ranks of the host. Before the first step() too.
  virtual void adopt_state(std::size_t position, OptimizerState state) = 0;
  // After a step() that was not shared: gives the state's memory back.
  virtual void end_shared_step() = 0;
};

// What clips gradients of a global 2-norm to `max_norm`, as torch's clip_grad_norm_ does: at most
// 1; a norm that is NaN makes every gradient so.
inline double clip_coefficient(double norm, double max_norm) {
  const double coefficient = max_norm / (norm + 1e-6);
  return coefficient > 1.0 ? 1.0 : coefficient;
}

}  // namespace ciranda
