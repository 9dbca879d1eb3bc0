#pragma once

#include <memory>
#include <vector>

#include "ciranda/torch/gradient/gradient_buffer.h"
#include "ciranda/torch/gradient/used_counters.h"
#include "core/engine/handle.h"

namespace ciranda {

// Memory of a bucket's gradients that the ranks reduce, with the counters of who had any.
// Not thread-safe; belongs to a Bucket.
class BucketMemory : public GradientMemory {
 public:
  // Where this rank says which slots it has gradients for; reduced with them, once the handles are
  // done good for every rank's.
  virtual UsedCounters& counters() = 0;
  // All is written: tells the other ranks. Does not block.
  virtual void submit() = 0;
  virtual bool submitted() const = 0;
  // Of what was submitted.
  virtual void append_handles(std::vector<Handle>& out) const = 0;
  // The handles are done and good: this thread, or its stream of a GPU, sees what is reduced.
  virtual void write_back() = 0;
  // The handles, if there are any, are done: the memory may be written again.
  virtual void retire() = 0;
  // Bytes of arena memory.
  virtual std::size_t arena_bytes() const = 0;
};

}  // namespace ciranda
