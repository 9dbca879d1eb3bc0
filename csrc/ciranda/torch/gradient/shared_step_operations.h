#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "ciranda/torch/gradient/arena_gradients.h"
#include "ciranda/torch/gradient/gradient_buffer.h"
#include "ciranda/torch/step/shared_step.h"

namespace ciranda {

// The optimizer's step on a bucket, as operations on the bucket's memory that replace its plain
// reduction. The gradients stay as they are.
//
// Not thread-safe; belongs to a Bucket, whose memory and slots outlive it. Throws Exception.
class SharedStepOperations {
 public:
  SharedStepOperations(const std::shared_ptr<const Communicator>& among, ArenaGradients& memory,
                       const std::vector<GradientSlot>& slots, bool share_parameters);

  SharedStep& shared() { return shared_; }
  const std::byte* gradients() const { return memory_.data(); }  // of every slot

  // Submit the step, or only the squares of the gradients. The handle of one must be released
  // before the other is submitted, and shared() must be prepared for the rule. Both return without
  // blocking.
  void submit(SharedStep::Update update);
  void submit_squares(SharedStep::Update update);
  // Submits, in place of the step or the squares, a no-op that deliberately mismatches it, so that
  // all ranks exchange their reasons first.
  void submit_objection(bool squares);
  // Counts the step, which is done, for the slots that any rank used.
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
