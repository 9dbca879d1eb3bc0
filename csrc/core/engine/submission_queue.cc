#include "core/engine/submission_queue.h"

#include <utility>

#include "core/base/assert.h"
#include "core/wire/operation_name.h"

namespace ciranda {

bool SubmissionQueue::Names::add(const RequestSpec& spec) {
  auto& names = live[static_cast<std::size_t>(spec.kind)];
  if (spare.empty()) return names.insert(spec.name).second;
  spare.back().value() = spec.name;
  auto added = names.insert(std::move(spare.back()));
  if (added.inserted) {
    spare.pop_back();
  } else {
    spare.back() = std::move(added.node);
  }
  return added.inserted;
}

void SubmissionQueue::Names::remove(const RequestSpec& spec) {
  auto& names = live[static_cast<std::size_t>(spec.kind)];
  const auto found = names.find(spec.name);
  if (found != names.end()) spare.push_back(names.extract(found));
}

Status SubmissionQueue::push(Submission&& submission) {
  const RequestSpec& spec = *submission.spec;
  const auto kind = static_cast<std::size_t>(spec.kind);
  const MutexLock lock(mutex_);
  CIRANDA_TRY(open_);
  if (in_flight_ >= kInFlightMax) {
    return Error{.code = ErrorCode::kLimit,
                 .text = std::to_string(kInFlightMax) +
                         " operations are unfinished on this rank; synchronize some of them before "
                         "submitting " +
                         std::string(op_kind_name(spec.kind)) + " '" + spec.name + "'",
                 .tensor = spec.name};
  }
  Names& names = names_of(spec.group);
  if (is_unnamed(spec)) {
    submission.occurrence = names.unnamed_count[kind]++;
  } else if (!names.add(spec)) {
    const std::string kind_name(op_kind_name(spec.kind));
    return Error{.code = ErrorCode::kDuplicateName,
                 .text = kind_name + " '" + spec.name + "': this rank has an unfinished " +
                         kind_name + " of the same name; give each a name of its own or " +
                         "synchronize the first one",
                 .tensor = spec.name};
  }
  ++in_flight_;
  CIRANDA_ASSERT(in_flight_ <= kInFlightMax);  // I8
  queue_.push_back(std::move(submission));
  queued_.store(queue_.size(), std::memory_order_release);
  return {};
}

bool SubmissionQueue::drain_into(std::vector<Submission>& out) {
  if (empty()) return false;
  const MutexLock lock(mutex_);
  CIRANDA_ASSERT(!queue_.empty());  // only the thread that has the seat drains
  for (Submission& submission : queue_) out.push_back(std::move(submission));
  queue_.clear();
  queued_.store(0, std::memory_order_release);
  return true;
}

void SubmissionQueue::close(const Error& why) {
  const MutexLock lock(mutex_);
  open_ = why;
}

void SubmissionQueue::release(const RequestSpec& spec) {
  const MutexLock lock(mutex_);
  CIRANDA_ASSERT(in_flight_ > 0);  // I4: push() has counted it, and it ends once
  --in_flight_;
  if (is_unnamed(spec)) return;
  if (spec.group == kWorldGroup) return world_names_.remove(spec);
  const auto found = other_names_.find(spec.group);
  if (found != other_names_.end()) found->second.remove(spec);
}

void SubmissionQueue::count_anew() {
  const MutexLock lock(mutex_);
  world_names_.unnamed_count.fill(0);
  for (auto& [group, names] : other_names_) names.unnamed_count.fill(0);
}

void SubmissionQueue::forget(GroupId group) {
  const MutexLock lock(mutex_);
  other_names_.erase(group);
}

}  // namespace ciranda
