#include "core/member/recovery.h"

#include <cstddef>
#include <optional>

#include "core/base/assert.h"

namespace ciranda::member {

RecoveryPlan plan_recovery(std::span<const Standing> standings) {
  CIRANDA_ASSERT(!standings.empty());
  std::optional<std::size_t> newest;
  for (std::size_t rank = 0; rank < standings.size(); ++rank) {
    if (!standings[rank].holds_state) continue;
    if (!newest || standings[rank].moment > standings[*newest].moment) newest = rank;
  }
  const std::size_t source = newest.value_or(0);
  RecoveryPlan plan{.source = static_cast<Rank>(source), .moment = standings[source].moment};
  for (std::size_t rank = 0; rank < standings.size(); ++rank) {
    if (rank == source) continue;
    const Standing& standing = standings[rank];
    if (!standing.holds_state) {
      plan.newcomers.push_back(static_cast<Rank>(rank));
    } else if (standing.moment < plan.moment) {
      plan.behind.push_back(static_cast<Rank>(rank));
    }
    CIRANDA_ASSERT(!standing.holds_state || standing.moment <= plan.moment);  // I6
  }
  return plan;
}

}  // namespace ciranda::member
