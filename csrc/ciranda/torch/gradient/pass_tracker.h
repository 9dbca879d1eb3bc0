#pragma once

#include <utility>

#include "core/base/assert.h"

namespace ciranda {

// Counts the backward passes of a step. A pass begins with the first gradient that reaches the
// optimizer, and ends with its graph task of autograd. Pure.
class PassTracker {
 public:
  explicit PassTracker(int passes_per_step) : per_step_(passes_per_step) {}

  // Takes effect at once, also within a step.
  void set_per_step(int passes) { per_step_ = passes; }
  int per_step() const { return per_step_; }
  bool in_last_pass() const { return done_ + 1 >= per_step_; }

  // A gradient has reached the optimizer in this graph task. Returns true until call_back_at_end()
  // was called for the graph task. Every graph task needs that call, because an earlier one that
  // raised an error never calls back.
  bool enter(int graph_task) {
    in_pass_ = true;
    return graph_task != graph_task_;
  }
  void call_back_at_end(int graph_task) { graph_task_ = graph_task; }
  // The graph task has called back. `goes_on`: the pass goes on after it. `failed`: an error is
  // kept, so the pass does not count. Returns true if this was the last pass of the step.
  bool leave(bool goes_on, bool failed) {
    graph_task_ = kNone;
    if (goes_on || !std::exchange(in_pass_, false) || failed) return false;
    CIRANDA_ASSERT(per_step_ >= 1);
    return ++done_ >= per_step_;
  }
  // Later passes belong to the next step.
  void start_step() {
    in_pass_ = false;
    done_ = 0;
  }

 private:
  static constexpr int kNone = -1;

  int per_step_;
  int done_ = 0;  // in this step
  bool in_pass_ = false;
  int graph_task_ = kNone;  // latest that will call back
};

}  // namespace ciranda
