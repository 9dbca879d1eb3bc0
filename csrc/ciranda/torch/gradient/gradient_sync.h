#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "ciranda/torch/collective/collective.h"
#include "ciranda/torch/gradient/pass_tracker.h"
#include "ciranda/torch/gradient/tracked_parameters.h"
#include "ciranda/torch/step/reducer_options.h"
#include "ciranda/torch/tensor/error.h"
#include "core/engine/engine.h"

namespace ciranda {

// An error that concerns gradients alone: it does no harm if the user discards them.
class SpoiledGradients : public Exception {
 public:
  explicit SpoiledGradients(const std::string& text)
      : Exception({.code = ErrorCode::kInvalidArgument, .text = text}) {}
};

// Decides which gradients of a step are reduced, and reduces them. The tensor that holds a gradient
// tells whether the gradient is reduced.
//
// Not thread-safe; belongs to a GradientReducer. Throws Exception. The methods are collective and
// block, unless they say otherwise.
class GradientSync {
 public:
  // Work on the gradients that this rank needs before a step, in ascending order.
  enum class Work : std::uint8_t {
    kNone,    // all are reduced
    kAddUp,   // the step itself adds up the ranks' gradients
    kReduce,  // reduce first
    kPlace,   // before that, a frozen parameter with a gradient needs a place
  };

  GradientSync(std::shared_ptr<Engine> engine, std::shared_ptr<const Communicator> among,
               const ReducerOptions& options, TrackedParameters& parameters, PassTracker& passes);

  // Returns the work that this rank's gradients need. Throws SpoiledGradients if a gradient was
  // replaced after it had been summed. Not collective.
  Work needed() const;
  // Does the work if any rank needs it.
  void reduce_if_any_rank(Work mine);
  // Reduces all gradients. Leaves the buckets ready for a new step, also if it throws.
  void reduce_now();

  // Runs `wait`, which blocks for other ranks. A rank that makes more backward passes before this
  // step than this rank does is still in backward(), where it waits for this rank's gradients. So
  // this rank takes part in the reduction of gradients until `wait` returns. The step itself asks
  // all ranks once more which gradients they have.
  using Wait = std::function<void(const Engine::Look&)>;
  void wait_beside_backward(const Wait& wait);
  // Returns the largest `mine` of the ranks, from 0 to 3.
  int most_of_ranks(int mine, const char* what);

  // Begins a step: no gradient is taken. Not collective.
  void start_step();
  // Waits for this rank's operations in flight, since memory must not change while other ranks read
  // it. Not collective.
  void await_in_flight();

 private:
  bool is_reduced(const GradientSlot& slot) const;
  void refuse_writes_in_flight();
  void add_up_once(Bucket& bucket);

  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<const Communicator> among_;
  const ReducerOptions& options_;
  TrackedParameters& parameters_;
  PassTracker& passes_;
};

}  // namespace ciranda
