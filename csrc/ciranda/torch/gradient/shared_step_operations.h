#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "ciranda/torch/gradient/arena_gradients.h"
#include "ciranda/torch/gradient/gradient_buffer.h"
#include "ciranda/torch/step/shared_step.h"

namespace ciranda {

// The optimizer's step on a bucket, as operations on its memory that take the place of its mere
// reduction. The gradients stay as they are.
//
// Not thread-safe; belongs to a Bucket, whose memory and slots outlive it. Throws Exception.
class SharedStepOperations {
 public:
  SharedStepOperations(const std::shared_ptr<const Communicator>& among, ArenaGradients& memory,
                       const std::vector<GradientSlot>& slots, bool share_parameters);

  SharedStep& shared() { return shared_; }
  const std::byte* gradients() const { return memory_.data(); }  // of all slots

  // The step, or the squares of the gradients only; the handle of one is let go of before the other
  // is submitted. shared() is prepared for the rule. Do not block.
  void submit(SharedStep::Update update);
  void submit_squares(SharedStep::Update update);
  // Instead of one of these, where this rank wants the ranks to talk first: an operation that does
  // nothing, and that ranks which want the step disagree with.
  void submit_objection(bool squares);
  // The step is done.
  void count();

 private:
  using Spec = std::shared_ptr<const RequestSpec>;
  const Spec& spec(Spec& latest, const char* suffix, const std::string& words) const;
  SharedStep::Used used_anywhere() const;

  ArenaGradients& memory_;
  SharedStep shared_;
  const std::size_t slots_;
  Spec step_spec_;  // of the latest update rule
  Spec squares_spec_;
};

}  // namespace ciranda
