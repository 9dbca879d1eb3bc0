#include "core/engine/run/group_directory.h"

#include <string>

#include "core/engine/submission_queue.h"
#include "core/wire/operation_name.h"
#include "core/wire/pair.h"

namespace ciranda {

Status GroupDirectory::check_member(Rank self, const RequestSpec& spec) const {
  if (spec.group == kWorldGroup) return {};
  const auto refused = [&](std::string why) {
    return about({.code = ErrorCode::kInvalidArgument, .text = std::move(why)}, spec);
  };
  const auto own = [self] { return "rank " + std::to_string(self); };
  if (is_pair(spec.group)) {
    const Pair pair = pair_of(spec.group);
    const bool takes_part = pair.from == self || pair.to == self;
    if (takes_part && is_in_world(pair, world_->size())) return {};
    return refused(own() + " cannot send a message from rank " + std::to_string(pair.from) +
                   " to rank " + std::to_string(pair.to) + ", nor receive it");
  }
  bool exists = false;
  {
    const MutexLock lock(mutex_);
    const auto found = others_.find(spec.group);
    exists = found != others_.end();
    if (exists && found->second->contains(self)) return {};
  }
  const std::string set = "process set " + std::to_string(spec.group);
  return refused(exists ? own() + " is not a member of " + set +
                              "; only its members may submit operations of the set"
                        : "there is no " + set + " (any more)");
}

}  // namespace ciranda
