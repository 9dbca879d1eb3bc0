#include "core/ps/decide/vector_works.h"

#include <string>

#include "core/base/assert.h"
#include "core/ps/decide/refusal.h"

namespace ciranda::ps {
namespace {

std::string name_of(const VectorWork& work) {
  return "vector operation " + std::to_string(work.number);
}

}  // namespace

Result<VectorValues> VectorWorks::take(const VectorWork& work, Shard* shard, Journal* journal) {
  if (shard == nullptr) {
    return refused(ErrorCode::kInvalidArgument,
                   name_of(work) + " came before any worker declared its parameters");
  }
  CIRANDA_TRY(check(work));
  if (is_new(work)) {
    CIRANDA_TRY(shard->check(work));  // so that replaying the journal cannot fail
    if (journal != nullptr) journal->write({.kind = Change::Kind::kWorked, .work = work}, {});
    CIRANDA_TRY(repeat(work, *shard));
  }
  CIRANDA_ASSERT(work.number != 0 && work.number <= done_.size());
  return VectorValues{.dots = done_[static_cast<std::size_t>(work.number - 1)].dots};
}

Status VectorWorks::repeat(const VectorWork& work, Shard& shard) {
  auto dots = shard.work(work);
  if (!dots) return dots.error();
  done_.push_back({work, std::move(dots).value()});
  return {};
}

// Returns an error unless the operation is the next one, or was done before.
Status VectorWorks::check(const VectorWork& work) const {
  const std::string name = name_of(work);
  if (work.number == 0 || work.number > done_.size() + 1) {
    return refused(ErrorCode::kRankLost,
                   name + " came, but the latest one that this server knows is " +
                       std::to_string(done_.size()) +
                       "; to keep vector operations across a restart, give "
                       "servers --durability log or disk");
  }
  if (is_new(work) && done_.size() >= kWorksMax) {
    return refused(ErrorCode::kLimit,
                   name + " exceeds the number of vector operations that a job can have");
  }
  if (!is_new(work) && !(done_[static_cast<std::size_t>(work.number - 1)].work == work)) {
    return refused(ErrorCode::kMismatch,
                   name + " was another one before the coordinator was restarted");
  }
  return {};
}

}  // namespace ciranda::ps
