#include "core/ps/decide/task_parts.h"

#include <algorithm>

#include "core/base/assert.h"

namespace ciranda::ps {
namespace {

constexpr std::size_t kTasksWithPartsMax = std::size_t{1} << 32;

}  // namespace

bool TaskParts::add(const TaskPart& part) {
  if (part.settled > settled_) {
    settled_ = part.settled;
    parts_.erase(parts_.begin(), parts_.upper_bound(settled_));
  }
  if (part.task == 0) return true;
  if (part.task <= settled_) return false;
  std::uint64_t& had = parts_[part.task];
  if (part.part <= had) return false;
  CIRANDA_ASSERT(part.task > settled_ && settled_ >= part.settled);  // I30
  had = part.part;
  return true;
}

void TaskParts::save(Writer& out) const {
  out.varint(settled_);
  out.varint(parts_.size());
  for (const auto& [task, parts] : parts_) {
    out.varint(task);
    out.varint(parts);
  }
}

void TaskParts::restore(Reader& in) {
  settled_ = in.varint("parts.settled", UINT64_MAX);
  parts_.clear();
  for (std::size_t left = in.count("parts.tasks", kTasksWithPartsMax, 2); left > 0 && in.ok();
       --left) {
    const TaskId task = in.varint("parts.task", UINT64_MAX);
    parts_[task] = in.varint("parts.parts", UINT64_MAX);
  }
}

}  // namespace ciranda::ps
