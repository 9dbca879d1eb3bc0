#pragma once

#include <cstdint>

#include "core/backend/backend.h"
#include "core/engine/submission_queue.h"

namespace ciranda {

// Appends the memory of tensor `index` of `submission` of rank `self` of `ranks` to `execution`:
// pointers, and for kinds whose sizes differ by rank the offsets that all ranks computed alike from
// the contributions. Allocates the output where only now its size is known.
Status add_member_memory(const Response& response, std::size_t index, Rank self, int ranks,
                         Submission& submission, Execution& execution);

// Bytes of this rank's input (of the bucket, for in_arena).
std::uint64_t payload_bytes(const Submission& submission);

}  // namespace ciranda
