#pragma once

#include <memory>
#include <vector>

#include "ciranda/torch/gradient/gradient_buffer.h"
#include "ciranda/torch/gradient/used_counters.h"
#include "core/engine/handle.h"

namespace ciranda {

// The memory of a bucket's gradients, which the ranks reduce, with counters of the ranks that had a
// gradient. Not thread-safe; belongs to a Bucket.
class BucketMemory : public GradientMemory {
 public:
  // Counters in which this rank says which slots it has gradients for. They are reduced too: once
  // the handles are done, they count every rank's gradients.
  virtual UsedCounters& counters() = 0;
  // Submits the reduction of the memory, which is completely written. Does not block.
  virtual void submit() = 0;
  virtual bool submitted() const = 0;
  // Appends the handles of submitted operations.
  virtual void append_handles(std::vector<Handle>& out) const = 0;
  // Makes the results visible to this thread, or to its current stream of a GPU. The handles must
  // be done, without an error.
  virtual void write_back() = 0;
  // Allows the memory to be written again. The handles, if any, must be done.
  virtual void retire() = 0;
  // Returns the bytes of arena memory.
  virtual std::size_t arena_bytes() const = 0;
};

}  // namespace ciranda
