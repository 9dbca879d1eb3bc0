#include "core/ps/decide/checkpoint_announcer.h"

#include "core/base/assert.h"

namespace ciranda::ps {

void CheckpointAnnouncer::keep(CheckpointKeeper* keeper, Checkpoint latest) {
  keeper_ = keeper;
  latest_ = latest;
}

void CheckpointAnnouncer::after_push(std::uint64_t version, std::uint64_t now_ns) {
  if (keeper_ == nullptr) return;
  if (!at_) {
    at_ = now_ns;
    // A restored server had announced its latest checkpoint before this push.
    if (pushes_ > 0 && version > 0) version_ = (version - 1) / pushes_ * pushes_;
  }
  const bool after_pushes = pushes_ > 0 && version >= version_ + pushes_;
  const bool after_time = ns_ > 0 && now_ns >= *at_ + ns_;
  if (!after_pushes && !after_time) return;
  const auto next = keeper_->announce();
  if (!next) return;
  CIRANDA_ASSERT(*next > latest_);  // I29
  latest_ = *next;
  version_ = version;
  at_ = now_ns;
}

}  // namespace ciranda::ps
