#pragma once

#include <ciranda/distributed_options.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/wire/messages.h"

namespace ciranda {

// What a reducer does with gradients, its buckets and what of them is on a GPU. Equal on every
// rank.
struct ReducerOptions {
  std::string name;                  // distinguishes two optimizers
  GroupId group = kWorldGroup;       // whose ranks train together
  ReduceOp op = ReduceOp::kAverage;  // or kSum
  // f: gradients are divided by f before they are summed, and the sum is multiplied by f.
  double predivide_factor = 1.0;
  int backward_passes_per_step = 1;  // whose gradients are added up in p.grad
  // kFloat16 or kBFloat16, of float32 gradients: see RequestSpec.
  std::optional<DType> wire_dtype = {};
  std::uint8_t streams = 0;      // that gradients go over between hosts: see RequestSpec
  bool sparse_as_dense = false;  // else they are gathered
  // Of gradients that are reduced together, where `groups` does not say; none: 4 MiB, on a GPU 25
  // MiB. A larger gradient has a bucket of its own.
  std::optional<std::int64_t> bucket_bytes = {};
  // Parameters (by position) that shall be reduced together; each group becomes a bucket.
  std::vector<std::vector<std::size_t>> groups = {};
  // step() replaces the optimizer's own: the ranks of the host share its work. Without
  // `reduce_in_backward` p.grad is this rank's own until synchronize() or step().
  bool shared_step = false;
  bool reduce_in_backward = true;
  // With shared_step: the ranks of the host keep one copy of the parameters, rank 0's.
  bool share_parameters = false;
};

// How a group of `ranks` reduces gradients: what the requests for them say alike. Without tensors.
RequestSpec reduction_of(const ReducerOptions& options, int ranks);

// What gradients travel as; none for kNone.
std::optional<DType> wire_dtype_of(Compression compression);

}  // namespace ciranda
