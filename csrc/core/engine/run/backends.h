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

namespace ciranda {

// The backend that runs operations, for each kind of memory.
struct BackendChoice {
  BackendId cpu = BackendId::kNative;
  BackendId gpu = BackendId::kNccl;
  std::string gpu_refused;  // why tensors on a GPU are refused; empty: they are not
};

// The combined answer of several backends: those of one group, or of every group. `each` calls the
// function that it is given for every one of them.
template <typename Each>
const Error* first_broken(Each each) {
  const Error* why = nullptr;
  each([&](const auto& one) { why = why != nullptr ? why : one.broken(); });
  return why;
}
template <typename Each>
bool all_that_work_will_wake(Each each) {
  bool works = false;
  bool all_wake = true;
  each([&](const auto& one) {
    if (one.idle()) return;
    works = true;
    all_wake = all_wake && one.will_wake();
  });
  return works && all_wake;
}
template <typename Each>
std::uint64_t soonest_look_ns(Each each) {  // returns 0 if there is none
  std::uint64_t soonest = 0;
  each([&](const auto& one) {
    const std::uint64_t next = one.look_again_ns();
    if (next > 0) soonest = soonest > 0 ? std::min(soonest, next) : next;
  });
  return soonest;
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
  bool idle() const;
  // Returns true if advance() would do nothing: all backends are idle and none asks to be looked at
  // again.
  bool resting() const;
  void blocked_on(std::vector<Rank>& out) const;
  void abort(const Error& why);
  const Error* broken() const;
  bool will_wake() const;
  std::uint64_t look_again_ns() const;
  // For a child made by fork: gives up all backends without running their destructors, because
  // their threads exist only in the parent.
  void abandon() noexcept;

 private:
  Backend& find(const Execution& execution);
  static bool rests(const Backend& backend) {
    return backend.idle() && backend.look_again_ns() == 0;
  }
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
