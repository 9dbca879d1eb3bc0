#pragma once

#include <optional>
#include <vector>

#include "core/base/result.h"
#include "core/negotiate/group_table.h"
#include "core/negotiate/readiness.h"

namespace ciranda {

// Why an operation that all its members have submitted, but for those in `joined`, cannot run;
// nullopt: it can. `pending` is what else has been submitted, and not by all.
std::optional<Error> fault_of(const PendingOp& op, const std::vector<Rank>& joined,
                              const GroupTable& groups, const Readiness& pending);

}  // namespace ciranda
