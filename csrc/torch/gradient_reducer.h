#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "torch/bucket.h"

namespace ciranda {

struct ReducerOptions {
  std::string name;                        // distinguishes two optimizers; equal on every rank
  ReduceOp op = ReduceOp::kAverage;        // or kSum
  double predivide_factor = 1.0;           // gradients are divided by it before they are summed
  int backward_passes_per_step = 1;
  Compression compression = Compression::kNone;
  bool sparse_as_dense = false;
  std::int64_t bucket_bytes = 4 << 20;
  // Parameters (by position) that shall be reduced together; each group becomes a bucket.
  std::vector<std::vector<std::size_t>> groups;
};

using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

// Reduces the gradients of an optimizer's parameters: hooks on their gradient accumulators (C++,
// no GIL) put each gradient into its bucket as backward produces it and hand complete buckets to
// the engine. When a backward pass has produced the gradients of all parameters, it returns with
// the reduced ones in p.grad; otherwise synchronize() finishes, with zeros for what this rank has
// not produced. Parameters for which no rank had a gradient keep the p.grad they have.
//
// Thread-safe. Throws Exception; an error inside backward() is kept for synchronize().
class GradientReducer : public std::enable_shared_from_this<GradientReducer> {
 public:
  GradientReducer(std::shared_ptr<Engine> engine, ReducerOptions options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // In the order of registration, on every rank the same. Frozen parameters get their place when
  // they are unfrozen. Call once after construction, again for add_param_group.
  void add_parameters(NamedParameters parameters) EXCLUDES(mutex_);

  // Blocks until p.grad holds the reduced gradients of this step; at once when it does already.
  void synchronize() EXCLUDES(mutex_);
  // The optimizer has stepped: gradients that backward computes from here on belong to a new step.
  void finish_step() EXCLUDES(mutex_);
  // Before the user zeroes gradients: waits for what other ranks may still read.
  void settle() EXCLUDES(mutex_);

  void set_backward_passes_per_step(int passes) EXCLUDES(mutex_);
  std::size_t arena_bytes() EXCLUDES(mutex_);
  std::size_t bucket_count() EXCLUDES(mutex_);

 private:
  friend class GradientHook;
  // The pointer type differs between versions of torch.
  using Accumulator =
      decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));
  struct Hooked {  // a parameter that requires a gradient
    Accumulator accumulator;
    std::uintptr_t hook = 0;
    Bucket* bucket = nullptr;
    std::size_t slot = 0;
    int passes_left = 1;
  };
  struct Candidate {  // any parameter of the optimizer
    std::string name;
    at::Tensor parameter;
    bool placed = false;
  };

  // By the hook of `hooked_[index]`, in a thread of autograd.
  void gradient_is_there(std::size_t index) EXCLUDES(mutex_);
  void backward_ended() noexcept EXCLUDES(mutex_);

  void place_unfrozen() REQUIRES(mutex_);
  void place_bucket(NamedParameters parameters) REQUIRES(mutex_);
  void reduce_now() REQUIRES(mutex_);
  void reduce_sparse(Bucket& bucket) REQUIRES(mutex_);
  void start_round() REQUIRES(mutex_);
  bool all_complete() const REQUIRES(mutex_);

  const std::shared_ptr<Engine> engine_;
  const ReducerOptions options_;

  Mutex mutex_;
  int passes_ GUARDED_BY(mutex_);
  std::vector<Candidate> candidates_ GUARDED_BY(mutex_);
  std::vector<Hooked> hooked_ GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Bucket>> buckets_ GUARDED_BY(mutex_);
  bool synchronized_ GUARDED_BY(mutex_) = false;  // p.grad is reduced and nothing came since
  bool callback_queued_ GUARDED_BY(mutex_) = false;
  std::exception_ptr backward_error_ GUARDED_BY(mutex_);
};

}  // namespace ciranda
