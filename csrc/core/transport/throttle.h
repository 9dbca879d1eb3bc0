#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace ciranda {

// How often each source may come: some times at once, then at a steady pace. A token bucket for
// each, kept as the time at which it is full again. It decides alone: the time comes in
// (monotonic_ns). Not thread-safe.
class Throttle {
 public:
  using Source = std::uint64_t;
  static constexpr std::size_t kSourcesMax = 4096;  // more: all are forgotten, and let in again

  Throttle(std::uint64_t at_once, std::uint64_t per_second)
      : turn_ns_(1'000'000'000 / per_second), allowance_ns_(at_once * turn_ns_) {}

  // Takes a turn of that source; false when it has none left.
  bool admit(Source source, std::uint64_t now_ns);
  // It meant well: the turn is not counted.
  void give_back(Source source);

 private:
  const std::uint64_t turn_ns_;
  const std::uint64_t allowance_ns_;
  std::unordered_map<Source, std::uint64_t> full_ns_;
};

}  // namespace ciranda
