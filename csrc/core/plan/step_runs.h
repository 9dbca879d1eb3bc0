#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ciranda {

// Neighbours in a flat memory that make the same step of an optimizer, in elements.
struct StepRun {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t step = 0;  // the number of the one that comes; the first is 1
};

// Of `slots` (with begin and end, ascending) those for which `used(i)`; `done(i)`: steps that slot
// i has made. Between two slots lie zeros, whose update is zero: neighbours make one run.
template <typename Slots, typename Used, typename Done>
std::vector<StepRun> step_runs(const Slots& slots, Used used, Done done) {
  std::vector<StepRun> runs;
  std::size_t previous = slots.size();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (!used(i)) continue;
    const std::int64_t step = static_cast<std::int64_t>(done(i)) + 1;
    if (previous + 1 == i && runs.back().step == step) {
      runs.back().end = slots[i].end;
    } else {
      runs.push_back({.begin = slots[i].begin, .end = slots[i].end, .step = step});
    }
    previous = i;
  }
  return runs;
}

}  // namespace ciranda
