#pragma once

#include <memory>
#include <vector>

#include "ciranda/torch/collective/collective.h"
#include "ciranda/torch/gradient/bucket.h"
#include "ciranda/torch/step/reducer_options.h"

namespace ciranda {

// Sparse gradients stay in p.grad; their rows are gathered by every rank. Of what has been
// written back, the slots that any rank had such gradients for. Collective, blocking; throws
// Exception.
void reduce_sparse(const std::vector<std::unique_ptr<Bucket>>& buckets,
                   const ReducerOptions& options, const Communicator& among);

}  // namespace ciranda
