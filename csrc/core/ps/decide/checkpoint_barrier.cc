#include "core/ps/decide/checkpoint_barrier.h"

#include <algorithm>
#include <utility>

#include "core/base/assert.h"

namespace ciranda::ps {

void CheckpointBarrier::leave(Worker worker) {
  members_[static_cast<std::size_t>(worker)] = {};
  close_if_complete();
}

void CheckpointBarrier::expect_push(Worker worker) {
  if (closed_ == 0 || closed_ != latest_ || is_behind(worker)) return;
  CIRANDA_ASSERT(keeper_ != nullptr && !open_);  // I29: by close_if_complete()
  keeper_->withdraw(std::exchange(closed_, 0));
}

void CheckpointBarrier::begin(Checkpoint checkpoint) {
  if (checkpoint <= latest_ || keeper_ == nullptr) return;
  CIRANDA_ASSERT(closed_ < checkpoint);  // I29: none is begun once it was closed
  latest_ = checkpoint;
  open_ = true;
  keeper_->begin(checkpoint);
}

void CheckpointBarrier::mark(Worker worker, Checkpoint checkpoint) {
  begin(checkpoint);
  Checkpoint& marked = members_[static_cast<std::size_t>(worker)].marked;
  marked = std::max(marked, checkpoint);
  close_if_complete();
}

void CheckpointBarrier::end() {
  CIRANDA_ASSERT(std::ranges::none_of(members_, &Member::here));
  if (keeper_ == nullptr) return;
  begin(latest_ + 1);
  close_if_complete();
}

// Returns true if the worker's next push does not belong to the latest checkpoint.
bool CheckpointBarrier::is_behind(Worker worker) const {
  CIRANDA_ASSERT(static_cast<std::size_t>(worker) < members_.size());
  return members_[static_cast<std::size_t>(worker)].marked >= latest_;
}

void CheckpointBarrier::close_if_complete() {
  const bool complete = std::ranges::all_of(
      members_, [&](const Member& each) { return !each.here || each.marked >= latest_; });
  if (!open_ || !complete) return;
  CIRANDA_ASSERT(keeper_ != nullptr && closed_ != latest_);  // I29: closed once
  open_ = false;
  closed_ = latest_;
  keeper_->close();
}

// The pushes of a round that belong to the checkpoint are added as a smaller round, with a scale
// for their number.
void CheckpointBarrier::write(const Change& change, const Data& data) {
  CIRANDA_ASSERT(!open_ || keeper_ != nullptr);  // I29: by begin()
  if (next_ != nullptr) next_->write(change, data);
  if (open_ && change.kind == Change::Kind::kRows && !is_behind(change.worker)) {
    keeper_->add(change, data);
  }
  if (!open_ || change.kind != Change::Kind::kApplied) return;
  Change part{.kind = change.kind, .scale = change.scale};
  Data parts;
  const std::size_t count = change.pushes.size();
  CIRANDA_ASSERT(count > 0 && data.size() % count == 0);  // I29: the same number for each push
  const std::size_t pieces = data.size() / count;
  for (std::size_t i = 0; i < count; ++i) {
    if (is_behind(change.pushes[i].worker)) continue;
    part.pushes.push_back(change.pushes[i]);
    const auto first = data.begin() + static_cast<std::ptrdiff_t>(i * pieces);
    parts.insert(parts.end(), first, first + static_cast<std::ptrdiff_t>(pieces));
  }
  if (part.pushes.empty()) return;
  part.scale *= static_cast<double>(count) / static_cast<double>(part.pushes.size());
  keeper_->add(part, parts);
}

}  // namespace ciranda::ps
