#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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
                       const std::vector<GradientSlot>& slots, bool share_parameters,
                       bool journaled);

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

  // In an elastic job a rank enters the step of all its buckets before it submits the first. The
  // step is in flight from submit() to count() or withdraw(). See SharedStep.
  void enter() {
    if (shared_.journaled()) shared_.enter(memory_.arena());
  }
  void withdraw();
  void hold() {
    if (in_flight_) shared_.hold_gradients();
  }
  void revoke() {
    if (in_flight_) shared_.revoke();
  }
  bool begun() const { return in_flight_ && shared_.step_begun(); }
  bool can_complete() const { return shared_.can_complete(); }
  void complete();
  void count_completed();

 private:
  using Spec = std::shared_ptr<const RequestSpec>;
  const Spec& spec(Spec& latest, const char* suffix, const std::string& words) const;
  SharedStep::Used used_anywhere() const;
  void count(const std::vector<Rank>& joined);

  ArenaGradients& memory_;
  SharedStep shared_;
  const std::size_t slots_;
  Spec step_spec_;  // of the latest update rule
  Spec squares_spec_;
  std::optional<SharedStep::Update> in_flight_;
};

}  // namespace ciranda
