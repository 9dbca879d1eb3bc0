#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/negotiate/readiness.h"
#include "core/wire/messages.h"

namespace ciranda {

// The texts of negotiation. They depend on the agreed order only, so every rank prints the same
// text (I7). They stay below kErrorTextBytesMax, whatever the number of ranks and values.

// Returns "rank 1", "ranks 0, 2" or "ranks 0-5, 7". `ranks` ascends and is not empty.
std::string rank_list(const std::vector<Rank>& ranks);

// Returns "allreduce 'grad.w'", "barrier without a name (call 3)", "allreduce 'w' of process set 2"
// or "join". Calls are counted from 0.
std::string op_label(const RequestSpec& spec, std::uint32_t occurrence);

// Names the first attribute that differs and, for each value, the ranks that have it:
// "allreduce 'grad.w': shapes differ: ranks 0, 2 have float32 [3, 4], rank 1 has float32 [3, 5];
// submit the same shape on every rank". `op` is complete and has disagreements.
std::string mismatch_text(const PendingOp& op);

std::string left_text(const RequestSpec& spec, std::uint32_t occurrence,
                      const std::vector<Rank>& departed);
// Says why an operation does not run after `joined` have joined. The text has no op_label().
std::string joined_text(const std::vector<Rank>& joined);
std::string after_join_text(const RequestSpec& spec, std::uint32_t occurrence, Rank rank);
std::string no_group_text(const RequestSpec& spec, std::uint32_t occurrence);
std::string no_member_text(const RequestSpec& spec, std::uint32_t occurrence, const Group& group,
                           Rank rank);

// Returns kMalformed: `from` broke the protocol.
Error violation(Rank from, const std::string& what);
Error unknown_number_error(Rank from, CacheId id);

}  // namespace ciranda
