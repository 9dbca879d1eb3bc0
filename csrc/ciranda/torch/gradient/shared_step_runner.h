#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ciranda/torch/collective/collective.h"
#include "ciranda/torch/gradient/gradient_sync.h"
#include "ciranda/torch/gradient/tracked_parameters.h"
#include "ciranda/torch/step/reducer_options.h"
#include "ciranda/torch/step/step_types.h"
#include "core/engine/engine.h"

namespace ciranda {

// Makes the optimizer's step, which the ranks of the host share, bucket by bucket, and decides with
// the other ranks whether they still share it. Has the update rules and the state to adopt.
//
// Not thread-safe; belongs to a GradientReducer, whose methods of the same names describe these.
class SharedStepRunner {
 public:
  SharedStepRunner(std::shared_ptr<Engine> engine, std::shared_ptr<const Communicator> among,
                   const ReducerOptions& options, TrackedParameters& parameters,
                   GradientSync& sync);

  void set_rule(std::size_t number, const kernels::UpdateRule& rule);
  void confirm_sharing();
  // Prepares the buckets that are not prepared. Collective.
  void prepare_buckets();
  StepOutcome step(double gradient_scale, bool reduce, double max_norm,
                   const std::string& objection);
  void hold_step();
  LostStep lost_step() const;
  void complete_step();
  void end_completed_step();
  double norm() const { return norm_; }
  OptimizerState state(std::size_t position, bool copies);
  void adopt_state(std::size_t position, OptimizerState state);
  void end_shared_step();

 private:
  struct Attempt {        // at a shared step
    double scale = 1.0;   // factor of the gradients
    bool add_up = false;  // the step adds up the ranks' gradients
    bool object = false;  // object instead: the ranks exchange their reasons first
  };
  using Work = GradientSync::Work;
  using Submit = void (SharedStepOperations::*)(SharedStep::Update);

  std::string step_or_reason(double gradient_scale, bool reduce, double max_norm,
                             const std::string& objection);
  bool try_step(double gradient_scale, Work work, double max_norm, bool object);
  void take_for_step();
  void run_on_buckets(const Attempt& attempt, Submit submit, bool squares);
  void take_norm();
  std::string objection_now() const;
  void prepare_for_other_rules();
  bool waits(std::size_t position);
  std::vector<std::size_t> take_news();

  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<const Communicator> among_;
  const ReducerOptions& options_;
  TrackedParameters& parameters_;
  GradientSync& sync_;

  struct WordedRule {
    kernels::UpdateRule rule;
    std::string words;  // made once, not at every step
    std::string words_adding_up;
  };
  std::vector<WordedRule> rules_;
  // By position: state to adopt at the first step, see waits(). Empty where nothing was adopted.
  std::vector<std::optional<OptimizerState>> to_adopt_;
  bool adopts_ = false;                        // some parameter waits
  std::string ended_;                          // why the ranks no longer share the step
  std::optional<std::uint64_t> agreed_joins_;  // as of the latest confirm_sharing()
  bool asks_for_state_ = false;                // set by confirm_sharing(), for the next step
  double norm_ = 0.0;
};

}  // namespace ciranda
