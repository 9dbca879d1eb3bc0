#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ciranda/torch/collective/collectives.h"

namespace ciranda {

// A tensor whose memory all ranks of the host map: its in-place allreduce copies nothing. Lives in
// the engine's arena for as long as the tensor does. Thread-safe, does not block.
at::Tensor arena_empty(const std::shared_ptr<Engine>& engine,
                       const std::vector<std::int64_t>& shape, c10::ScalarType dtype);
// In-place allreduce of a tensor made by arena_empty of that engine, by every rank.
Started arena_allreduce_async(const Communicator& among, const at::Tensor& tensor,
                              const ReduceOptions& options);

}  // namespace ciranda
