#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "ciranda/torch/gradient/bucket_memory.h"
#include "ciranda/torch/gradient/gradient_buffer.h"
#include "ciranda/torch/gradient/shared_step_operations.h"
#include "ciranda/torch/step/reducer_options.h"

namespace ciranda {

// Gradients that are reduced together: their buffer, its memory, and the optimizer's step on them
// if the ranks share it.
//
// Not thread-safe; belongs to a GradientReducer. Throws Exception.
class Bucket {
 public:
  // The differences between the buckets of one reducer.
  struct Contents {
    RequestSpec reduction;                     // named; without tensors
    std::size_t rule = 0;                      // number of the parameters' update rule
    std::shared_ptr<TorchStream> stream = {};  // of the parameters' GPU; null on the CPU
    // CPU only: makes step(). The constructor is then collective if share_parameters is on.
    bool shared_step = false;
    std::vector<GradientBuffer::Member> members;
  };
  Bucket(const std::shared_ptr<const Communicator>& among, const ReducerOptions& options,
         Contents contents);

  GradientBuffer& gradients() { return *gradients_; }
  std::vector<GradientSlot>& slots() { return gradients_->slots(); }
  std::size_t rule() const { return rule_; }

  // Submits the reduction of a bucket in which every slot is ready. Does not block.
  void submit();
  bool submitted() const { return memory_->submitted(); }
  // Appends the handles of submitted operations, also those of step().
  void append_handles(std::vector<Handle>& out) const { memory_->append_handles(out); }
  // Puts the results into p.grad where any rank had a gradient, unless the user has put something
  // else there in the meantime. The handles must be done, without an error.
  void write_back();
  // Releases the handles. They must be done, if there are any.
  void retire() { memory_->retire(); }
  // Prepares the bucket for the next step. The handles, if any, must be done.
  void reset();
  // Sets whether another optimizer reduces the slot.
  void set_foreign(std::size_t index, bool foreign);

  // Returns null if the ranks do not share the step.
  SharedStepOperations* step() { return step_.get(); }
  void end_shared_step() { step_.reset(); }
  // Takes the gradients that backward() has not handed over, and closes the places to backward.
  // Gradients that were reduced before are not reduced again.
  void take_for_step();

  // Return true if any rank had a dense gradient, or a sparse one, for the slot. Valid after
  // write_back(); the answer is the same on every rank.
  bool dense_anywhere(std::size_t index) const;
  bool sparse_anywhere(std::size_t index) const;
  // Removes slots from the bucket's memory if some rank had a sparse gradient and no rank a dense
  // one.
  void move_sparse_out();
  std::size_t arena_bytes() const;

 private:
  void close();

  const std::size_t rule_;
  std::unique_ptr<BucketMemory> memory_;
  std::unique_ptr<GradientBuffer> gradients_;
  std::unique_ptr<SharedStepOperations> step_;
};

}  // namespace ciranda
