// What could break: slots at different steps that are updated as one, or a slot that is left out.
#include "core/plan/step_runs.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace ciranda {
namespace {

struct Place {
  std::int64_t begin;
  std::int64_t end;
};

std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> runs_of(
    const std::vector<bool>& used, const std::vector<int>& done) {
  const std::vector<Place> slots = {{0, 3}, {16, 20}, {32, 32}, {32, 50}};
  std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> all;
  const auto runs = step_runs(
      slots, [&](std::size_t slot) { return used[slot]; },
      [&](std::size_t slot) { return done[slot]; });
  for (const StepRun& run : runs) all.emplace_back(run.begin, run.end, run.step);
  return all;
}

TEST(StepRuns, NeighboursAtOneStepAreOne) {
  using Runs = std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>>;
  EXPECT_EQ(runs_of({true, true, true, true}, {0, 0, 0, 0}), (Runs{{0, 50, 1}}));
  EXPECT_EQ(runs_of({true, true, true, true}, {4, 4, 5, 5}), (Runs{{0, 20, 5}, {32, 50, 6}}));
  EXPECT_EQ(runs_of({true, false, true, true}, {1, 1, 1, 1}), (Runs{{0, 3, 2}, {32, 50, 2}}));
  EXPECT_EQ(runs_of({false, false, false, false}, {1, 1, 1, 1}), Runs{});
}

}  // namespace
}  // namespace ciranda
