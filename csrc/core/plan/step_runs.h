#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ciranda {

// A range of a flat memory, in elements, whose slots make the same step of an optimizer.
struct StepRun {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t step = 0;  // number of the step to make; the first is 1
};

// Returns the runs of those `slots` (with begin and end, ascending) for which `used(i)` is true.
// `done(i)` is the number of steps that slot i has made. Neighbours with the same step form one
// run: the memory between them holds zeros, and their update is zero.
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
