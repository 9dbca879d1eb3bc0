#include "core/member/news.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace ciranda::member {

void LossNews::lose(Lost lost, std::uint64_t now_ns) {
  lost_.push_back(lost);
  told_waiting_ = false;  // each loss is told
  if (!broken_since_) broken_since_ = now_ns;
  if (too_small_since_) return;
  too_small_since_ = now_ns;
  size_before_ = formed_members_.size();
}

News LossNews::formed(const NewEpoch& epoch, std::uint64_t step, std::uint64_t now_ns) {
  const std::set<Incarnation> before(formed_members_.begin(), formed_members_.end());
  News news{.kind = NewsKind::kFormed,
            .epoch = epoch.number,
            .members = epoch.members,
            .step = step,
            .planned = epoch.planned,
            .lost = std::exchange(lost_, {})};
  std::ranges::copy_if(epoch.members, std::back_inserter(news.joined),
                       [&](Incarnation each) { return !before.contains(each); });
  const std::optional<std::uint64_t> since = epoch.planned ? too_small_since_ : broken_since_;
  if (since) news.since_ns = now_ns - *since;
  formed_members_ = epoch.members;
  broken_since_.reset();
  if (epoch.members.size() >= size_before_) too_small_since_.reset();
  return news;
}

std::optional<News> LossNews::waiting(EpochNumber newest, std::vector<Incarnation> left,
                                      std::uint64_t now_ns) {
  if (std::exchange(told_waiting_, true)) return std::nullopt;
  return News{.kind = NewsKind::kWaiting,
              .epoch = newest,
              .members = std::move(left),
              .lost = lost_,
              .since_ns = now_ns - broken_since_.value_or(now_ns)};
}

}  // namespace ciranda::member
