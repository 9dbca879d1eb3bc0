#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "ciranda/torch/gradient/bucket_memory.h"
#include "ciranda/torch/gradient/gradient_buffer.h"
#include "ciranda/torch/gradient/shared_step_operations.h"
#include "ciranda/torch/step/reducer_options.h"

namespace ciranda {

// Gradients that are reduced together: a buffer, the memory it lies in, and the optimizer's step on
// it where the ranks share that.
//
// Not thread-safe; belongs to a GradientReducer. Throws Exception.
class Bucket {
 public:
  // What tells the buckets of one reducer apart.
  struct Contents {
    RequestSpec reduction;                     // named; without tensors
    std::size_t rule = 0;                      // the number of the update rule of its parameters
    std::shared_ptr<TorchStream> stream = {};  // of the parameters' GPU; null on the CPU
    bool shared_step = false;                  // on the CPU: step() is there. Collective
    std::vector<GradientBuffer::Member> members;
  };
  Bucket(const std::shared_ptr<const Communicator>& among, const ReducerOptions& options,
         Contents contents);

  GradientBuffer& gradients() { return *gradients_; }
  std::vector<GradientSlot>& slots() { return gradients_->slots(); }
  std::size_t rule() const { return rule_; }

  // Every slot is ready: tells the other ranks. Does not block.
  void submit();
  bool submitted() const { return memory_->submitted(); }
  // Of what was submitted, also by step().
  void append_handles(std::vector<Handle>& out) const { memory_->append_handles(out); }
  // The handles are done and good: results into p.grad where any rank had a gradient, unless the
  // user has put something else there meanwhile.
  void write_back();
  // The handles, if there are any, are done.
  void retire() { memory_->retire(); }
  // For the next step. The same.
  void reset();
  // Whether another optimizer reduces the slot.
  void set_foreign(std::size_t index, bool foreign);

  // Null where the ranks do not share it.
  SharedStepOperations* step() { return step_.get(); }
  void end_shared_step() { step_.reset(); }
  // What is missing, for the step: backward gets no place from here on. What is reduced stays so.
  void take_for_step();

  // After write_back(): whether any rank had a dense, a sparse gradient for the slot; the same
  // answer on every rank.
  bool dense_anywhere(std::size_t index) const;
  bool sparse_anywhere(std::size_t index) const;
  // Takes the memory of slots whose gradient was sparse and nowhere dense out of the bucket.
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
