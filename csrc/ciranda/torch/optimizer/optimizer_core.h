#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ciranda/torch/collective/collective.h"
#include "ciranda/torch/gradient/gradient_reducer.h"
#include "ciranda/torch/gradient/rank_comparison.h"
#include "ciranda/torch/optimizer/tuner.h"
#include "ciranda/torch/step/optimizer_options.h"

namespace ciranda {

// What a DistributedOptimizer over ranks does beside the user's optimizer, for torch.optim and for
// torch::optim alike. The Python class and the C++ class pass parameters, update rules and state
// in, and make the optimizer's own step.
//
// A step is begin_step(), then step() if the ranks share it, else synchronize(), clip(), the
// optimizer's own step and finish_step(); then end_step(). The methods block and are collective,
// unless they say otherwise, and throw as GradientReducer's do. Where a rank trains alone they do
// nothing. Not thread-safe, except for synchronize() and discard_step().
class OptimizerCore {
 public:
  // Compares the ranks' options and parameters. `group`: the process set; a rank that is no member
  // of it trains alone. `obstacle` says why the optimizer cannot share its step, as the rest of a
  // sentence. add_parameters() is called next, with the same parameters. Throws kMismatch, on every
  // rank, if the ranks differ, and kInvalidArgument for impossible options.
  OptimizerCore(GroupId group, OptimizerOptions options, const NamedParameters& parameters,
                std::optional<std::string> obstacle);
  ~OptimizerCore();
  OptimizerCore(const OptimizerCore&) = delete;
  OptimizerCore& operator=(const OptimizerCore&) = delete;

  // Not collective.
  bool alone() const { return among_ == nullptr; }
  const std::string& name() const { return name_; }  // prefix of the operations' names
  const OptimizerOptions& options() const { return options_; }
  // Returns why the ranks do not share the step, as the rest of a sentence; empty if they do.
  const std::string& why_not_shared() const { return why_not_shared_; }
  bool shares_step() const { return why_not_shared_.empty(); }

  // Adds parameters: the constructor's, or those for which agree_on() was called. `groups` has the
  // number of each parameter's group.
  void add_parameters(NamedParameters parameters, std::vector<std::size_t> groups);
  // Compares parameters that a program adds later. If the other ranks have ended the shared step
  // while this rank had joined, returns why; the caller then calls end_shared_step(). Otherwise
  // returns an empty text.
  std::string agree_on(const NamedParameters& added);

  // --- Gradients ---

  void set_backward_passes_per_step(int passes);  // not collective
  void synchronize();
  void discard_step();
  void finish_step();  // not collective

  // --- A step ---

  // Returns true if the step has to call compare() next.
  bool begin_step();
  // Compares the ranks. `way` says in one line how this rank steps. Returns a difference as a
  // sentence for a warning; an empty text if there is none.
  std::string compare(const std::string& way);
  // Clips gradients to options().max_grad_norm, if there is one, and returns their norm before, on
  // their device and without a wait for a GPU. `scale`: a factor that is still in the gradients.
  // Returns an undefined tensor if there is nothing to clip. Not collective.
  at::Tensor clip(const std::vector<at::Tensor>& gradients, const at::Tensor& scale = {}) const;
  // Returns the loss, reduced as the gradients are. LBFGS's search depends on the loss, and all
  // ranks have to decide alike.
  at::Tensor loss_of_all(const at::Tensor& loss) const;
  // Adasum: returns by how much this rank's own step has changed `parameters`, which were `starts`
  // before it, and sets them back to `starts`. Not collective.
  static std::vector<at::Tensor> take_changes(const std::vector<at::Tensor>& parameters,
                                              const std::vector<at::Tensor>& starts);
  // Adasum: returns the ranks' changes combined.
  std::vector<at::Tensor> combine(const std::vector<at::Tensor>& changes) const;
  // Replaces buffers by those of the first rank.
  void broadcast_buffers(const std::vector<at::Tensor>& buffers) const;
  // Ends a step. Returns true if autotuning wants other options: the caller then calls retune().
  // `objects`: this rank objects to the next shared step.
  bool end_step(bool objects = false);

  // --- A shared step; see GradientReducer ---

  void set_rule(std::size_t group, const kernels::UpdateRule& rule);
  StepOutcome step(double gradient_scale, bool reduce, const std::string& objection);
  void hold_step();
  LostStep lost_step();
  void complete_step();
  void end_completed_step();
  double norm();
  OptimizerState state(std::size_t position, bool copies);
  void adopt_state(std::size_t position, OptimizerState state);
  // Ends the shared step for good, and frees its state, after the caller has copied it. Not
  // collective.
  void end_shared_step(std::string why);

  // --- Autotuning ---

  // Begins to tune, if the user asked for it and this is the job's first optimizer. `class_name` is
  // for the log.
  void tune(const std::string& class_name, Tuner::Clock clock);
  bool tunes() const { return tuner_ != nullptr; }
  // Applies the options that autotuning wants. `states`: copies of all parameters' state, by
  // position. If the ranks share the step afterwards, retune() has adopted `states`; otherwise the
  // caller must. `obstacle` is as for the constructor.
  void retune(std::vector<OptimizerState> states, std::optional<std::string> obstacle);

  // --- Figures of the reducer; 0 without one. Not collective ---

  std::size_t arena_bytes();
  std::uint64_t moved_bytes();  // see GradientReducer
  std::size_t bucket_count();

 private:
  void agree_and_count(const NamedParameters& parameters, std::optional<std::string> obstacle);
  void say_why_not_shared();

  std::shared_ptr<const Communicator> among_;  // null: this rank trains alone
  OptimizerOptions options_;
  std::string name_;
  std::string why_not_shared_;
  std::string why_sharing_ended_;  // by the user's program; empty while it has not
  NamedParameters parameters_;     // all that were added
  std::vector<std::size_t> groups_;
  std::vector<kernels::UpdateRule> rules_;      // by group
  std::shared_ptr<GradientReducer> reducer_;    // null if another reduces, or nobody
  std::unique_ptr<RankComparison> comparison_;  // null: alone
  std::unique_ptr<Tuner> tuner_;
  std::optional<OptimizerOptions> wanted_;  // by the tuner, for retune()
  bool own_steps_were_faster_ = false;      // as the tuner found
};

}  // namespace ciranda
