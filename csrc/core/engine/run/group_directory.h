#pragma once

#include <map>
#include <memory>
#include <utility>

#include "core/base/assert.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/negotiate/group.h"
#include "core/wire/messages.h"

namespace ciranda {

// The groups that this rank knows to exist, for threads that submit. Thread-safe.
class GroupDirectory {
 public:
  explicit GroupDirectory(std::shared_ptr<const Group> world) : world_(std::move(world)) {}

  // Returns null if the group does not exist or has been removed.
  std::shared_ptr<const Group> find(GroupId id) const EXCLUDES(mutex_) {
    if (id == kWorldGroup) return world_;
    const MutexLock lock(mutex_);
    const auto found = others_.find(id);
    return found == others_.end() ? nullptr : found->second;
  }
  // Returns kInvalidArgument unless the group of `spec` exists and rank `self` is a member.
  Status check_member(Rank self, const RequestSpec& spec) const EXCLUDES(mutex_);
  void add(std::shared_ptr<const Group> group) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    const GroupId id = group->id;
    const bool is_new = others_.emplace(id, std::move(group)).second;
    CIRANDA_ASSERT(id != kWorldGroup && is_new);  // I19: no number is used twice
  }
  void remove(GroupId id) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    const std::size_t removed = others_.erase(id);
    CIRANDA_ASSERT(removed == 1);  // I19: agreed, and add() knows every group
  }

 private:
  const std::shared_ptr<const Group> world_;
  mutable Mutex mutex_;
  std::map<GroupId, std::shared_ptr<const Group>> others_ GUARDED_BY(mutex_);
};

}  // namespace ciranda
