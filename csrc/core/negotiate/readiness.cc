#include "core/negotiate/readiness.h"

#include <algorithm>
#include <utility>

#include "core/base/assert.h"

namespace ciranda {
namespace {

// Returns the place where the operation with that occurrence is or would be inserted.
auto place_of(const std::vector<PendingOp*>& pending, std::uint32_t occurrence) {
  return std::lower_bound(pending.begin(), pending.end(), occurrence,
                          [](const PendingOp* op, std::uint32_t o) { return op->occurrence < o; });
}

}  // namespace

Readiness::~Readiness() {
  while (oldest_ != nullptr) close(*oldest_);
}

PendingOp* Readiness::find(const NameEntry& name, std::uint32_t occurrence) const {
  const auto place = place_of(name.pending, occurrence);
  return place != name.pending.end() && (*place)->occurrence == occurrence ? *place : nullptr;
}

PendingOp& Readiness::open(NameEntry& name, std::uint32_t occurrence,
                           std::shared_ptr<const RequestSpec> spec, std::uint64_t tick) {
  CIRANDA_ASSERT(find(name, occurrence) == nullptr);
  if (spare_.empty()) spare_.push_back(std::make_unique<PendingOp>());
  PendingOp& op = *spare_.back().release();
  spare_.pop_back();
  op.name = &name;
  op.occurrence = occurrence;
  op.since_tick = tick;
  op.spec = std::move(spec);
  op.contributions.resize(name.group->ranks.size());
  op.missing = name.group->size();
  op.older = newest_;
  (newest_ != nullptr ? newest_->newer : oldest_) = &op;
  newest_ = &op;
  name.pending.insert(place_of(name.pending, occurrence), &op);
  names_.add_reference(name);
  return op;
}

void Readiness::close(PendingOp& op) {
  NameEntry& name = *op.name;
  const auto place = place_of(name.pending, op.occurrence);
  CIRANDA_ASSERT(place != name.pending.end() && *place == &op);
  name.pending.erase(place);
  unlink(op);
  op.spec.reset();
  op.contributions.clear();
  op.missing = 0;
  op.disagreements.clear();
  spare_.emplace_back(&op);
  names_.release(name);
}

const PendingOp* Readiness::oldest_of(GroupId group) const {
  const PendingOp* op = oldest_;
  while (op != nullptr && op->group().id != group) op = op->newer;
  return op;
}

void Readiness::unlink(PendingOp& op) {
  (op.older != nullptr ? op.older->newer : oldest_) = op.newer;
  (op.newer != nullptr ? op.newer->older : newest_) = op.older;
  op.older = nullptr;
  op.newer = nullptr;
}

}  // namespace ciranda
