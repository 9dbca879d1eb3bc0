#pragma once

#include <memory>
#include <vector>

#include "ciranda/torch/collective/collective.h"
#include "ciranda/torch/gradient/bucket.h"
#include "ciranda/torch/step/reducer_options.h"

namespace ciranda {

// Reduces the sparse gradients of buckets that have been written back, for slots in which any rank
// has one. Sparse gradients stay in p.grad, and every rank gathers the rows. Collective, blocking;
// throws Exception.
void reduce_sparse(const std::vector<std::unique_ptr<Bucket>>& buckets,
                   const ReducerOptions& options, const Communicator& among);

}  // namespace ciranda
