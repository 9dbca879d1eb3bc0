#pragma once

#include <algorithm>
#include <cstdint>

#include "core/backend/backend.h"

namespace ciranda {

// What backends need of the thread that drives: one backend, those of a group, or all of a rank.
struct DriverNeeds {
  bool idle = true;                 // no operation runs
  bool all_wake = true;             // every backend that runs one calls wake() when it has work
  std::uint64_t look_again_ns = 0;  // soonest of Backend::look_again_ns(); 0: none asks

  // Returns true if a thread that waits may sleep at once.
  bool will_wake() const { return !idle && all_wake; }
  // Returns true if advance() would do nothing.
  bool none() const { return idle && look_again_ns == 0; }

  void add(const DriverNeeds& other) {
    idle = idle && other.idle;
    all_wake = all_wake && other.all_wake;
    if (other.look_again_ns == 0) return;
    look_again_ns =
        look_again_ns > 0 ? std::min(look_again_ns, other.look_again_ns) : other.look_again_ns;
  }
};

inline DriverNeeds needs_of(const Backend& backend) {
  const bool idle = backend.idle();
  return {.idle = idle,
          .all_wake = idle || backend.will_wake(),
          .look_again_ns = backend.look_again_ns()};
}

}  // namespace ciranda
