#include "core/negotiate/attendance.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "core/base/assert.h"
#include "core/negotiate/wording.h"

namespace ciranda {
namespace {

bool contains(const std::vector<Rank>& ranks, Rank rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

}  // namespace

// A rank that has left never joins, so the ranks that have joined would wait for ever. They take
// part again instead.
void Attendance::leave(Rank rank) {
  CIRANDA_ASSERT(!has_left(rank));
  departed_.push_back(rank);
  joined_.clear();
  is_full_ = false;
}

void Attendance::join(Rank rank) {
  CIRANDA_ASSERT(departed_.empty() && !contains(joined_, rank));
  joined_.insert(std::lower_bound(joined_.begin(), joined_.end(), rank), rank);
  is_full_ = false;
}

void Attendance::start_again() {
  CIRANDA_ASSERT(departed_.empty());
  joined_.clear();
  is_full_ = true;
}

bool Attendance::has_left(Rank rank) const {
  return contains(departed_, rank);
}

std::vector<Rank> Attendance::joined_without(const PendingOp& op) const {
  std::vector<Rank> ranks;
  for (const Rank rank : joined_) {
    const int index = op.group().index_of(rank);
    if (index >= 0 && !op.contributions[static_cast<std::size_t>(index)]) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<Rank> Attendance::missing(const PendingOp& op) const {
  std::vector<Rank> ranks;
  for (std::size_t index = 0; index < op.contributions.size(); ++index) {
    const Rank rank = op.group().ranks[index];
    if (!op.contributions[index] && !contains(joined_, rank)) ranks.push_back(rank);
  }
  return ranks;
}

std::optional<Error> Attendance::refusal_of(Rank from, const RequestSpec& spec,
                                            std::uint32_t occurrence, const Group& group) const {
  const auto refused = [&](std::string text) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .text = std::move(text),
                 .rank = from,
                 .tensor = spec.name};
  };
  if (!group.contains(from)) return refused(no_member_text(spec, occurrence, group, from));
  const auto is_member = [&](Rank rank) { return group.contains(rank); };
  if (std::any_of(departed_.begin(), departed_.end(), is_member))
    return left_error(spec, occurrence, group);
  if (contains(joined_, from)) return refused(after_join_text(spec, occurrence, from));
  return std::nullopt;
}

Error Attendance::left_error(const RequestSpec& spec, std::uint32_t occurrence,
                             const Group& group) const {
  std::vector<Rank> members;
  std::copy_if(departed_.begin(), departed_.end(), std::back_inserter(members),
               [&](Rank rank) { return group.contains(rank); });
  CIRANDA_ASSERT(!members.empty());
  return {.code = ErrorCode::kRankLeft,
          .text = left_text(spec, occurrence, members),
          .rank = members.front(),  // later ones may have left because of it
          .tensor = spec.name};
}

}  // namespace ciranda
