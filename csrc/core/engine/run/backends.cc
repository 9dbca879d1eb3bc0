#include "core/engine/run/backends.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/assert.h"

namespace ciranda {
namespace {

const BackendEntry& entry_of(std::span<const BackendEntry> entries, BackendId id) {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [id](const BackendEntry& entry) { return entry.id == id; });
  CIRANDA_ASSERT(found != entries.end());
  return *found;
}

// Describes the operation: "allreduce of int32 by Max with scale factors".
std::string words_of(const FusedOp& op) {
  std::string words =
      std::string(op_kind_name(op.kind)) + " of " + std::string(dtype_name(op.dtype));
  if (reduces(op.kind)) words += " by " + std::string(reduce_op_name(op.op));
  if (op.prescale != 1.0 || op.postscale != 1.0) words += " with scale factors";
  if (op.in_arena) words += " in the arena";
  return words;
}

}  // namespace

Backends::Backends(std::unique_ptr<Backend> shm, RingBackend* ring, BackendContext context,
                   std::span<const BackendEntry> entries)
    : context_(std::move(context)), entries_(entries), shm_(shm.get()), ring_(ring) {
  CIRANDA_ASSERT(shm_ != nullptr);
  all_.push_back(std::move(shm));
}

Status Backends::available(BackendId id, std::span<const BackendEntry> entries) {
  if (id == BackendId::kNative) return {};
  const BackendFacts facts = entry_of(entries, id).facts();
  if (facts.available) return {};
  return Error{.code = ErrorCode::kUnsupported, .text = facts.why_not};
}

Backend& Backends::find(const Execution& execution) {
  const BackendId id = execution.op.backend;
  if (execution.op.shares_step) return *shm_;
  if (id == BackendId::kNative) return ring_ != nullptr ? *ring_ : *shm_;
  Backend*& backend = by_id_[static_cast<std::size_t>(id)];
  if (backend == nullptr) {
    all_.push_back(entry_of(entries_, id).make(context_));
    backend = all_.back().get();
    CIRANDA_ASSERT(backend != nullptr);
  }
  return *backend;
}

void Backends::start(Execution&& execution) {
  Backend& backend = find(execution);
  if (backend.supports(execution.op)) return backend.start(std::move(execution));
  const FusedOp& op = execution.op;
  execution.done(Error{.code = ErrorCode::kUnsupported,
                       .text = std::string(backend_name(op.backend)) + " cannot run this " +
                               words_of(op) + "; convert the tensor, or choose another backend"},
                 nullptr);
}

bool Backends::advance() {
  bool moved = false;
  each(
      [&](Backend& backend) { moved = (!needs_of(backend).none() && backend.advance()) || moved; });
  return moved;
}

DriverNeeds Backends::needs() const {
  DriverNeeds needs;
  each([&](const Backend& backend) { needs.add(needs_of(backend)); });
  return needs;
}

void Backends::blocked_on(std::vector<Rank>& out) const {
  each([&](const Backend& backend) { backend.blocked_on(out); });
}

void Backends::abort(const Error& why) {
  each([&](Backend& backend) { backend.abort(why); });
}

const Error* Backends::broken() const {
  return first_broken([this](auto fn) { each(fn); });
}

void Backends::abandon() noexcept {
  for (auto& backend : all_) static_cast<void>(backend.release());
}

}  // namespace ciranda
