#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "ciranda/torch/step/reducer_options.h"

namespace ciranda {

// A parameter that needs a place in a bucket.
struct Unplaced {
  std::size_t position = 0;  // index among the optimizer's parameters
  at::Tensor parameter;
  std::size_t rule = 0;  // number of its update rule
};

// Plans which parameters, by position, share a bucket. Groups are as the options say. All other
// parameters fill buckets of up to bucket_bytes in reverse order of registration, which is
// backward's order. The parameters of a bucket have one device, dtype and rule. The plan is the
// same on every rank.
std::vector<std::vector<std::size_t>> plan_buckets(const std::vector<Unplaced>& parameters,
                                                   const ReducerOptions& options);

}  // namespace ciranda
