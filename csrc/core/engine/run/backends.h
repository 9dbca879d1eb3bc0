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

// Which backend runs operations on each kind of memory.
struct BackendChoice {
  BackendId cpu = BackendId::kNative;
  BackendId gpu = BackendId::kNccl;
  std::string gpu_refused;  // why no tensor of a GPU may be sent; empty: it may
};

// What several say together, of which `each` calls a function: those of a group, or of all groups.
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
std::uint64_t soonest_look_ns(Each each) {  // 0: none
  std::uint64_t soonest = 0;
  each([&](const auto& one) {
    const std::uint64_t next = one.look_again_ns();
    if (next > 0) soonest = soonest > 0 ? std::min(soonest, next) : next;
  });
  return soonest;
}

// The backends of a group: shared memory always, the ring of all groups on several hosts, and each
// other one from its first execution on. One thread at a time, as for a Backend.
class Backends {
 public:
  // `ring` null: one host. It and `entries` outlive this, which only starts executions there.
  Backends(std::unique_ptr<Backend> shm, RingBackend* ring, BackendContext context,
           std::span<const BackendEntry> entries = backend_entries());

  // kUnsupported with a sentence that says what to do, where this build or this machine cannot run
  // it. Thread-safe.
  static Status available(BackendId id, std::span<const BackendEntry> entries = backend_entries());

  // Starts it where its op says. What that backend does not support is done at once, with
  // kUnsupported.
  void start(Execution&& execution);
  bool advance();
  bool idle() const;
  // advance() would do nothing: all are idle, and none is to be looked at again.
  bool resting() const;
  void blocked_on(std::vector<Rank>& out) const;
  void abort(const Error& why);
  const Error* broken() const;
  bool will_wake() const;
  std::uint64_t look_again_ns() const;
  // In a child made by fork: gives up all of them without their destructors, whose threads exist in
  // the parent only.
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
