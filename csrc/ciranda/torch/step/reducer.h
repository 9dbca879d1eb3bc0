#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ciranda/torch/step/optimizer_state.h"
#include "core/engine/engine.h"
#include "core/kernels/update_rule.h"

namespace ciranda {

using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

// Reduces the gradients of an optimizer's parameters; with a shared step also makes its step.
//
// Thread-safe: calls wait for each other. Throws Exception: the error of an operation of the engine
// (kRankLost, kMismatch, …), and what a method names. All ranks that train together call a
// collective method, which blocks until they have; no other method blocks.
class Reducer {
 public:
  Reducer() = default;
  virtual ~Reducer() = default;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Adds parameters, in the same order on every rank: once after construction, again for each
  // add_param_group. A parameter's position is its index among all that were added. Frozen
  // parameters get their place in a bucket when they are unfrozen. `rules` has the number of each
  // parameter's update rule, see set_rule(), and is empty without a shared step. Collective with a
  // shared step. Throws kInvalidArgument for a dtype that is not floating.
  virtual void add_parameters(NamedParameters parameters, std::vector<std::size_t> rules) = 0;
  // Takes effect at once, also within a step.
  virtual void set_backward_passes_per_step(int passes) = 0;

  // Reduces the gradients of this step into p.grad. Collective. Throws an error of backward(), and
  // kInvalidArgument if a gradient was replaced after it had been summed.
  virtual void synchronize() = 0;
  // Runs `wait`, which blocks for other ranks, before synchronize() or step(). `wait` calls the
  // function that it is given while it waits, so that no rank waits in backward() for this one.
  using Wait = std::function<void(const Engine::Look&)>;
  virtual void wait_in_step(const Wait& wait) { wait({}); }
  // Ends the step: later backward passes belong to the next one.
  virtual void finish_step() = 0;
  // Begins a new step, since the user discards the gradients of this one. Collective where a
  // backward pass has raised: its operations are finished first, whose memory other ranks may still
  // read. Throws an error of backward(), unless it was about the gradients alone.
  virtual void discard_step() = 0;

  // The rest is of a shared step, in which the reducer has the optimizer's state and steps for it.

  // Sets the update rule of the parameters that were added with this number, from the next step().
  virtual void set_rule(std::size_t number, const kernels::UpdateRule& rule) = 0;
  // Confirms that the ranks still share the step. Called before each step, also by ranks that do
  // not share it any more, so that a rank which had joined learns of that. Collective the first
  // time, and the first time after each join.
  virtual void confirm_sharing() = 0;
  // Makes the optimizer's step on all parameters that any rank has a gradient for. Collective.
  // Gradients are multiplied by `gradient_scale`. Without `reduce` each rank's p.grad counts as
  // reduced already. With max_norm > 0 the gradients are clipped to that global 2-norm; norm() is
  // the norm before.
  //
  // A rank may object to sharing the step: with `objection`, the rest of a sentence, or because a
  // parameter was moved. Then nothing is updated, p.grad is the reduced gradient, and from here on
  // each rank makes its own step, once it has taken its state(). With share_parameters an objection
  // is kInvalidArgument. Throws also what synchronize() throws.
  struct StepOutcome {
    std::string why_not_shared = {};  // the objection, with its rank; empty if the step is done
    // Positions of parameters whose state is new, also by steps while this rank had joined.
    std::vector<std::size_t> fresh = {};
  };
  virtual StepOutcome step(double gradient_scale, bool reduce, double max_norm,
                           const std::string& objection) = 0;
  // The gradients' norm before the latest step that clipped; 0 before there was one.
  virtual double norm() = 0;
  // The state of the parameter at a position, see SharedStep: views of the shared memory, or
  // copies.
  virtual OptimizerState state(std::size_t position, bool copies) = 0;
  // Replaces the state, for all ranks of the host. Allowed before the first step() too.
  virtual void adopt_state(std::size_t position, OptimizerState state) = 0;
  // Frees the state's memory, after a step() that was not shared.
  virtual void end_shared_step() = 0;
};

// The factor by which torch's clip_grad_norm_ scales gradients of a global 2-norm to `max_norm`: at
// most 1. A norm that is NaN gives NaN.
inline double clip_coefficient(double norm, double max_norm) {
  const double coefficient = max_norm / (norm + 1e-6);
  return coefficient > 1.0 ? 1.0 : coefficient;
}

}  // namespace ciranda
