#pragma once

#include <cstdint>

#include "core/backend/backend.h"
#include "core/engine/submission_queue.h"

namespace ciranda {

// Appends the memory of tensor `index` of `submission` to `execution`, on the member with index
// `self` of `ranks` members: pointers and, for kinds with sizes that differ by rank, the offsets,
// which all ranks compute alike from the contributions. Allocates the output if its size was not
// known before the agreement.
Status add_member_memory(const Response& response, std::size_t index, Rank self, int ranks,
                         Submission& submission, Execution& execution);

// Returns the bytes of this rank's input; for in_arena, of its bucket.
std::uint64_t payload_bytes(const Submission& submission);

}  // namespace ciranda
