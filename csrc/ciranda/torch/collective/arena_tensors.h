#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ciranda/torch/collective/collectives.h"

namespace ciranda {

// Returns a tensor in memory that all ranks of the host map, so that its in-place allreduce copies
// nothing. The memory lies in the engine's arena and lives as long as the tensor. Thread-safe, does
// not block.
at::Tensor arena_empty(const std::shared_ptr<Engine>& engine,
                       const std::vector<std::int64_t>& shape, c10::ScalarType dtype);
// Starts an in-place allreduce of a tensor that arena_empty() made with the same engine, on every
// rank.
Started arena_allreduce_async(const Communicator& among, const at::Tensor& tensor,
                              const ReduceOptions& options);

}  // namespace ciranda
