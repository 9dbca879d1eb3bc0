#pragma once

#include <cstdint>

namespace ciranda {

// How often something may happen: some times at once, then at a steady pace. A token bucket, kept
// as the time at which it is full again. It decides alone: the time comes in (monotonic_ns). Not
// thread-safe.
class Throttle {
 public:
  Throttle(std::uint64_t at_once, std::uint64_t per_second)
      : turn_ns_(1'000'000'000 / per_second), allowance_ns_(at_once * turn_ns_) {}

  // Takes a turn; false when none is left.
  bool admit(std::uint64_t now_ns);
  // It was one that does not count.
  void give_back();

 private:
  std::uint64_t turn_ns_;
  std::uint64_t allowance_ns_;
  std::uint64_t full_ns_ = 0;
};

}  // namespace ciranda
