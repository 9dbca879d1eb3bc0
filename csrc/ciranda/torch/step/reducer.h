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

// Reduces the gradients of an optimizer's parameters. For a shared step it also makes the
// optimizer's step.
//
// Thread-safe: calls wait for each other. The methods throw Exception, with the error of an
// operation of the engine (kRankLost, kMismatch, ...) or an error that a method's comment names. A
// collective method is called by all ranks that train together, and blocks until they have called
// it; no other method blocks.
class Reducer {
 public:
  Reducer() = default;
  virtual ~Reducer() = default;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Adds parameters, in the same order on every rank: once after construction, again for each
  // add_param_group. A parameter's position is its index among all that were added. A frozen
  // parameter gets its slot of a bucket when it is unfrozen. `rules` has the number of each
  // parameter's update rule (see set_rule()) if the step is shared, else it is empty. Collective if
  // the step is shared. Throws kInvalidArgument for a dtype that is not floating.
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
  // Begins a new step, because the user discards the gradients of this one. Collective if a
  // backward pass has raised an error: its operations are finished first, since other ranks may
  // still read their memory. Throws an error of backward(), unless the error was about the
  // gradients alone.
  virtual void discard_step() = 0;

  // The other methods belong to a shared step: the reducer has the optimizer's state and makes its
  // step.

  // Sets the update rule of the parameters that were added with this number, from the next step()
  // on.
  virtual void set_rule(std::size_t number, const kernels::UpdateRule& rule) = 0;
  // Confirms that the ranks still share the step. Every rank calls it before each step, even after
  // the sharing has ended, since a rank that had joined learns of the end here. Collective in the
  // first call, and in the first call after each join.
  virtual void confirm_sharing() = 0;
  // Makes the optimizer's step on all parameters for which any rank has a gradient. Collective.
  // Multiplies gradients by `gradient_scale`. If `reduce` is false, p.grad counts as reduced
  // already. If max_norm > 0, clips the gradients to that global 2-norm; norm() then returns the
  // norm before clipping.
  //
  // A rank may object to sharing the step: by `objection`, the rest of a sentence, or because a
  // parameter was moved. Then nothing is updated and p.grad is the reduced gradient. From now on
  // each rank makes its own step, after it has taken its state(). If share_parameters is on, an
  // objection throws kInvalidArgument. Also throws what synchronize() throws.
  struct StepOutcome {
    std::string why_not_shared = {};  // the objection, with its rank; empty if the step is done
    // Positions of parameters with new state, even from steps made while this rank had joined.
    std::vector<std::size_t> fresh = {};
  };
  virtual StepOutcome step(double gradient_scale, bool reduce, double max_norm,
                           const std::string& objection) = 0;
  // Returns the gradients' norm before clipping, in the latest step that clipped; 0 if none has.
  virtual double norm() = 0;
  // Returns the state of the parameter at `position`, see SharedStep::state(): copies, or views of
  // the shared memory.
  virtual OptimizerState state(std::size_t position, bool copies) = 0;
  // Replaces the state, for all ranks of the host. May be called before the first step(), too.
  virtual void adopt_state(std::size_t position, OptimizerState state) = 0;
  // Frees the state's memory, after a step() that was not shared.
  virtual void end_shared_step() = 0;
};

// Returns the factor, at most 1, by which torch's clip_grad_norm_ scales gradients from the global
// 2-norm `norm` to `max_norm`. Returns NaN if `norm` is NaN.
inline double clip_coefficient(double norm, double max_norm) {
  const double coefficient = max_norm / (norm + 1e-6);
  return coefficient > 1.0 ? 1.0 : coefficient;
}

}  // namespace ciranda
