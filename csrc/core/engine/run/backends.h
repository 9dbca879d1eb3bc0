#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/backend/backend.h"
#include "core/backend/registry.h"
#include "core/backend/ring/ring_backend.h"
#include "core/engine/run/driver_needs.h"

namespace ciranda {

// The backend that runs operations, for each kind of memory.
struct BackendChoice {
  BackendId cpu = BackendId::kNative;
  BackendId gpu = BackendId::kNccl;
  std::string gpu_refused;  // why tensors on a GPU are refused; empty: they are not
};

// Returns the first error among several backends, or among those of several groups; null if none
// is broken. `each` calls the function that it is given for every one of them.
template <typename Each>
const Error* first_broken(Each each) {
  const Error* why = nullptr;
  each([&](const auto& one) { why = why != nullptr ? why : one.broken(); });
  return why;
}

// The backends of one group: shared memory always, on several hosts the ring that all groups share,
// and every other backend from its first execution on. One thread at a time, as for a Backend.
class Backends {
 public:
  // `ring`: null on one host. It and `entries` must outlive this object, which only starts
  // executions on the ring.
  Backends(std::unique_ptr<Backend> shm, RingBackend* ring, BackendContext context,
           std::span<const BackendEntry> entries = backend_entries());

  // Returns kUnsupported, with a sentence that says what to do, if this build or this machine
  // cannot run the backend. Thread-safe.
  static Status available(BackendId id, std::span<const BackendEntry> entries = backend_entries());

  // Starts the execution on the backend that its op names. If that backend does not support the op,
  // the execution is done at once, with kUnsupported.
  void start(Execution&& execution);
  bool advance();
  DriverNeeds needs() const;
  void blocked_on(std::vector<Rank>& out) const;
  void abort(const Error& why);
  const Error* broken() const;
  // For a child made by fork: gives up all backends without running their destructors, because
  // their threads exist only in the parent.
  void abandon() noexcept;

 private:
  Backend& find(const Execution& execution);
  template <typename Fn>
  void each(Fn fn) const {
    for (const auto& backend : all_) fn(*backend);
  }

  const BackendContext context_;
  const std::span<const BackendEntry> entries_;
  std::vector<std::unique_ptr<Backend>> all_;
  std::array<Backend*, kBackendCount> by_id_ = {};
  Backend* shm_;
  RingBackend* ring_;
};

}  // namespace ciranda
