#pragma once

#include <ciranda/distributed_options.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/wire/messages.h"

namespace ciranda {

// Options of a reducer, for its buckets on the CPU and on a GPU. Equal on every rank.
struct ReducerOptions {
  std::string name;                  // distinguishes two optimizers
  GroupId group = kWorldGroup;       // the ranks that train together
  ReduceOp op = ReduceOp::kAverage;  // or kSum
  // f: gradients are divided by f before the sum; the sum is multiplied by f, or by f / size for
  // kAverage.
  double predivide_factor = 1.0;
  int backward_passes_per_step = 1;  // p.grad adds up their gradients
  // kFloat16 or kBFloat16, for float32 gradients; see RequestSpec.
  std::optional<DType> wire_dtype = {};
  std::uint8_t streams = 0;      // connections for gradients between hosts; see RequestSpec
  bool sparse_as_dense = false;  // densify sparse gradients instead of gathering them
  // Size of a bucket of parameters outside of `groups`; default 4 MiB, on a GPU 25 MiB. A larger
  // gradient has its own bucket.
  std::optional<std::int64_t> bucket_bytes = {};
  // Parameters, by position, that have to be reduced together; each list becomes a bucket.
  std::vector<std::vector<std::size_t>> groups = {};
  // step() replaces the optimizer's own step, and the ranks of the host share its work. If
  // `reduce_in_backward` is false, p.grad is this rank's gradient until synchronize() or step().
  bool shared_step = false;
  bool reduce_in_backward = true;
  // For shared_step: the ranks of the host keep one copy of the parameters, rank 0's.
  bool share_parameters = false;
  // For shared_step: ranks may die in it, and the others go on.
  bool journaled = false;

  bool operator==(const ReducerOptions&) const = default;
};

// Returns the spec, without tensors, that all reductions of gradients over `ranks` ranks share.
RequestSpec reduction_of(const ReducerOptions& options, int ranks);

// Returns the wire dtype of gradients; none for kNone.
std::optional<DType> wire_dtype_of(Compression compression);

}  // namespace ciranda
