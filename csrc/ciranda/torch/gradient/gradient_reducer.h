#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ciranda/torch/gradient/gradient_owners.h"
#include "ciranda/torch/gradient/gradient_sync.h"
#include "ciranda/torch/gradient/pass_tracker.h"
#include "ciranda/torch/gradient/shared_step_runner.h"
#include "ciranda/torch/gradient/tracked_parameters.h"
#include "ciranda/torch/step/reducer_options.h"
#include "ciranda/torch/step/step_types.h"
#include "core/base/mutex.h"
#include "core/engine/engine.h"

namespace ciranda {

// Reduces the gradients of an optimizer's parameters. Hooks (C++, no GIL; see GradientOwners) put
// each gradient into its bucket as backward produces it, and hand complete buckets to the engine.
// The last of `backward_passes_per_step` backward passes waits for the other ranks and returns with
// reduced gradients in p.grad. A parameter that this pass did not reach on this rank counts as
// zeros. A parameter that no rank reached keeps its p.grad. synchronize() does the same after fewer
// passes; ranks may make different numbers of them.
//
// The tensor that holds a gradient tells whether the gradient is reduced; the optimizer does not. A
// gradient that the user replaces is reduced when the optimizer steps; so is one that the user
// edits, if the ranks average. All ranks decide that together.
//
// Autograd would turn an error inside backward() into a plain RuntimeError. The reducer keeps the
// error instead, and the next synchronize(), step() or discard_step() throws it.
//
// For a shared step the reducer also has the optimizer's state and makes its step.
//
// Thread-safe: calls wait for each other. The methods throw Exception, with the error of an
// operation of the engine (kRankLost, kMismatch, ...) or an error that a method's comment names. A
// collective method is called by all ranks that train together, and blocks until they have called
// it; no other method blocks.
class GradientReducer : public std::enable_shared_from_this<GradientReducer> {
 public:
  GradientReducer(std::shared_ptr<Engine> engine, ReducerOptions options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // Adds parameters, in the same order on every rank: once after construction, again for each
  // add_param_group. A parameter's position is its index among all that were added. A frozen
  // parameter gets its slot of a bucket when it is unfrozen. `rules` has the number of each
  // parameter's update rule (see set_rule()) if the step is shared, else it is empty. Collective if
  // the step is shared. Throws kInvalidArgument for a dtype that is not floating.
  void add_parameters(NamedParameters parameters, std::vector<std::size_t> rules) EXCLUDES(mutex_);
  // Takes effect at once, also within a step.
  void set_backward_passes_per_step(int passes) EXCLUDES(mutex_);

  // Reduces the gradients of this step into p.grad. Collective. Throws an error of backward(), and
  // kInvalidArgument if a gradient was replaced after it had been summed.
  void synchronize() EXCLUDES(mutex_);
  // Runs `wait`, which blocks for other ranks, before synchronize() or step(). `wait` calls the
  // function that it is given while it waits, so that no rank waits in backward() for this one.
  using Wait = GradientSync::Wait;
  void wait_in_step(const Wait& wait) EXCLUDES(mutex_);
  // Ends the step: later backward passes belong to the next one.
  void finish_step() EXCLUDES(mutex_);
  // Begins a new step, because the user discards the gradients of this one. Collective if a
  // backward pass has raised an error: its operations are finished first, since other ranks may
  // still read their memory. Throws an error of backward(), unless the error was about the
  // gradients alone.
  void discard_step() EXCLUDES(mutex_);

  // --- A shared step ---

  // Sets the update rule of the parameters that were added with this number, from the next step()
  // on.
  void set_rule(std::size_t number, const kernels::UpdateRule& rule) EXCLUDES(mutex_);
  // Confirms that the ranks still share the step. Every rank calls it before each step, even after
  // the sharing has ended, since a rank that had joined learns of the end here. Collective in the
  // first call, and in the first call after each join. Has no effect if the step was never shared.
  void confirm_sharing() EXCLUDES(mutex_);
  // Makes the optimizer's step on all parameters for which any rank has a gradient. Collective.
  // Multiplies gradients by `gradient_scale`. If `reduce` is false, p.grad counts as reduced
  // already. If max_norm > 0, clips the gradients to that global 2-norm; norm() then returns the
  // norm before clipping.
  //
  // A rank may object to sharing the step: by `objection`, the rest of a sentence, or because a
  // parameter was moved. Then nothing is updated and p.grad is the reduced gradient. From now on
  // each rank makes its own step, after it has taken its state(). If share_parameters is on, an
  // objection throws kInvalidArgument. Also throws what synchronize() throws.
  StepOutcome step(double gradient_scale, bool reduce, double max_norm,
                   const std::string& objection) EXCLUDES(mutex_);
  // In an elastic job, after step() has thrown because a rank was lost, these four are called in
  // this order. Maps, before this World ends, what it takes to complete the step.
  void hold_step() EXCLUDES(mutex_);
  // The rest is for when all ranks have left this World. Returns whether the step counts. The
  // answer is the same on every rank on which step() has thrown; where it has returned, it is
  // kNone.
  LostStep lost_step() EXCLUDES(mutex_);
  // Does what is left of the step, for all ranks. One rank calls it, where lost_step() is kBegun.
  void complete_step() EXCLUDES(mutex_);
  // Counts the step that is complete now, as if step() had returned.
  void end_completed_step() EXCLUDES(mutex_);
  // Returns the gradients' norm before clipping, in the latest step that clipped; 0 if none has.
  double norm() EXCLUDES(mutex_);
  // Returns the state of the parameter at `position`, see SharedStep::state(): copies, or views of
  // the shared memory.
  OptimizerState state(std::size_t position, bool copies) EXCLUDES(mutex_);
  // Replaces the state, for all ranks of the host. May be called before the first step(), too.
  void adopt_state(std::size_t position, OptimizerState state) EXCLUDES(mutex_);
  // Frees the state's memory, after a step() that was not shared.
  void end_shared_step() EXCLUDES(mutex_);

  std::size_t arena_bytes() EXCLUDES(mutex_);
  // Returns the bytes of gradients, so far, that were not born in the arena and had to be moved
  // there.
  std::uint64_t moved_bytes() EXCLUDES(mutex_);
  std::size_t bucket_count() EXCLUDES(mutex_);

 private:
  friend class GradientOwners;
  friend class BackwardEnd;
  // Tells whether hooks hand complete buckets to the engine during backward (kOn). A user's hook
  // may write another p.grad, and that gradient may already be in a reduction. The first pass
  // (kTrial) therefore reduces at its end, and shows whether any hook does so.
  enum class Overlap : std::uint8_t { kTrial, kOn, kOff };

  // Hooks and passes. GradientOwners calls these; on_gradient_ready() runs in a thread of autograd,
  // without the GIL.
  void on_gradient_ready(std::size_t position) noexcept EXCLUDES(mutex_);
  void set_foreign(std::size_t position, bool foreign) EXCLUDES(mutex_);
  void look_for_hooks() { look_for_hooks_.store(true); }  // in the next place_gradients()
  void forget(std::size_t position) EXCLUDES(mutex_);     // no longer counts as reduced
  // Links this reducer to one that has parameters in common: a pass that reaches one is a pass of
  // both, so that ranks which use different ones of these parameters end the pass alike.
  void link(const std::shared_ptr<GradientReducer>& other) EXCLUDES(mutex_);
  void pass_reached() noexcept EXCLUDES(mutex_);
  using Linked = std::vector<std::weak_ptr<GradientReducer>>;
  Linked enter_pass() REQUIRES(mutex_);
  static void tell(const Linked& linked);
  void take_gradient(const TrackedParameter& tracked) REQUIRES(mutex_);
  bool other_hooks_follow(const TrackedParameter& tracked) REQUIRES(mutex_);
  void judge_overlap() REQUIRES(mutex_);
  // Runs at the end of each graph task that ran a hook.
  void graph_task_ended() noexcept EXCLUDES(mutex_);
  void place_gradients() REQUIRES(mutex_);

  void synchronize_own() EXCLUDES(mutex_);
  void synchronize_foreign() EXCLUDES(mutex_);
  void throw_kept_error() REQUIRES(mutex_);

  const std::shared_ptr<Engine> engine_;
  const ReducerOptions options_;
  const std::shared_ptr<const Communicator> among_;
  const std::uint64_t number_;  // counts the reducers of this process in order of construction

  Mutex mutex_;
  PassTracker passes_ GUARDED_BY(mutex_);
  TrackedParameters parameters_ GUARDED_BY(mutex_);
  GradientSync sync_ GUARDED_BY(mutex_);
  SharedStepRunner shared_step_ GUARDED_BY(mutex_);
  Overlap overlap_ GUARDED_BY(mutex_) = Overlap::kTrial;
  std::exception_ptr kept_error_ GUARDED_BY(mutex_);
  std::atomic<bool> look_for_hooks_ = true;  // some may not be where autograd runs them
  Linked linked_ GUARDED_BY(mutex_);
};

// Makes a reducer on the default World. The World's settings say whether freed memory is kept
// between steps, and give the wire dtype if the options have none. Throws kUnsupported if the
// options have a wire dtype and the user chose another backend for the CPU.
std::shared_ptr<GradientReducer> make_gradient_reducer(ReducerOptions options);

}  // namespace ciranda
