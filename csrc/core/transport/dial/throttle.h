#pragma once

#include <cstdint>

namespace ciranda {

// A token bucket: it admits `at_once` events together, then `per_second` at a steady pace. Its
// state is the time at which the bucket is full again. The caller passes in the time
// (monotonic_ns). Not thread-safe.
class Throttle {
 public:
  Throttle(std::uint64_t at_once, std::uint64_t per_second)
      : turn_ns_(1'000'000'000 / per_second), allowance_ns_(at_once * turn_ns_) {}

  // Takes a token; returns false if none is left.
  bool admit(std::uint64_t now_ns);
  // Returns the token of an event that turned out not to count.
  void give_back();

 private:
  std::uint64_t turn_ns_;
  std::uint64_t allowance_ns_;
  std::uint64_t full_ns_ = 0;
};

}  // namespace ciranda
