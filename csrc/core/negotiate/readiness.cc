#include "core/negotiate/readiness.h"

#include <algorithm>
#include <utility>

#include "core/base/assert.h"

namespace ciranda {
namespace {

// Where the operation with that occurrence is, or would be inserted.
auto place_of(const std::vector<PendingOp*>& pending, std::uint32_t occurrence) {
  return std::lower_bound(pending.begin(), pending.end(), occurrence,
                          [](const PendingOp* op, std::uint32_t o) { return op->occurrence < o; });
}

}  // namespace

Readiness::Readiness(int ranks, NameTable& names) : size(ranks), names_(names) {
  CIRANDA_ASSERT(ranks >= 1 && ranks <= kRanksMax);
}

Readiness::~Readiness() {
  while (oldest_ != nullptr) close(*oldest_);
  forget_failures();
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
  op.contributions.resize(static_cast<std::size_t>(size));
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
  op.contributed = 0;
  op.disagreements.clear();
  spare_.emplace_back(&op);
  names_.release(name);
}

void Readiness::unlink(PendingOp& op) {
  (op.older != nullptr ? op.older->newer : oldest_) = op.newer;
  (op.newer != nullptr ? op.newer->older : newest_) = op.older;
  op.older = nullptr;
  op.newer = nullptr;
}

void Readiness::remember_failure(const PendingOp& op, std::shared_ptr<const Error> error) {
  CIRANDA_ASSERT(error != nullptr && op.contributed < size);
  auto failure = std::make_unique<FailedOp>();
  failure->name = op.name;
  failure->occurrence = op.occurrence;
  failure->error = std::move(error);
  for (const auto& contribution : op.contributions) failure->owed.push_back(!contribution);
  failure->owed_count = size - op.contributed;
  names_.add_reference(*op.name);
  op.name->failed.push_back(failure.get());
  failed_.push_back(std::move(failure));
}

std::shared_ptr<const Error> Readiness::take_failure(NameEntry& name, std::uint32_t occurrence,
                                                     Rank rank) {
  const auto r = static_cast<std::size_t>(rank);
  const auto owes = [&](const FailedOp* op) { return op->occurrence == occurrence && op->owed[r]; };
  const auto found = std::find_if(name.failed.begin(), name.failed.end(), owes);
  if (found == name.failed.end()) return nullptr;
  FailedOp* const failure = *found;
  std::shared_ptr<const Error> error = failure->error;
  failure->owed[r] = false;
  CIRANDA_ASSERT(failure->owed_count > 0);
  if (--failure->owed_count == 0) {
    name.failed.erase(found);
    std::erase_if(failed_, [&](const auto& other) { return other.get() == failure; });
    names_.release(name);
  }
  return error;
}

void Readiness::forget_failures() {
  for (const auto& failure : failed_) {
    failure->name->failed.clear();
    names_.release(*failure->name);
  }
  failed_.clear();
}

}  // namespace ciranda
