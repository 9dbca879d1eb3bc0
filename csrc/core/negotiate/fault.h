#pragma once

#include <optional>
#include <vector>

#include "core/base/result.h"
#include "core/negotiate/group_table.h"
#include "core/negotiate/readiness.h"

namespace ciranda {

// Returns the error for which a complete operation cannot run; nullopt if it can. All members have
// submitted it, except those in `joined`. `pending` holds the operations that are not complete.
std::optional<Error> fault_of(const PendingOp& op, const std::vector<Rank>& joined,
                              const GroupTable& groups, const Readiness& pending);

}  // namespace ciranda
