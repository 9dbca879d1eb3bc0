#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "ciranda/torch/step/reducer_options.h"

namespace ciranda {

// A parameter that shall get a place in a bucket.
struct Unplaced {
  std::size_t position = 0;  // among the optimizer's
  at::Tensor parameter;
  std::size_t rule = 0;  // the number of its update rule
};

// Which parameters, by position, share a bucket: groups as the options say, others in reverse order
// of registration (backward's order) up to bucket_bytes; those of a bucket have one device, dtype
// and rule. The same on every rank.
std::vector<std::vector<std::size_t>> plan_buckets(const std::vector<Unplaced>& parameters,
                                                   const ReducerOptions& options);

}  // namespace ciranda
