#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <vector>

namespace ciranda {

// A DistributedOptimizer over ranks, as an elastic training sees it. This class lists those of the
// process, in the order of their making. Not thread-safe, but several threads may make optimizers.
class RankOptimizer {
 public:
  explicit RankOptimizer(torch::optim::Optimizer& optimizer);
  virtual ~RankOptimizer();
  RankOptimizer(const RankOptimizer&) = delete;
  RankOptimizer& operator=(const RankOptimizer&) = delete;

  static std::vector<RankOptimizer*> all();

  torch::optim::Optimizer& optimizer() const { return optimizer_; }

  // Frees what belongs to the World, so that it can end. Until train_anew() has returned, a step
  // throws kShutdown.
  virtual void leave_ranks() = 0;
  // Trains with the ranks of the World of now. Collective, blocking.
  virtual void train_anew() = 0;

 private:
  torch::optim::Optimizer& optimizer_;
};

// Watches the steps of optimizers, in a block of an elastic training.
class StepWatch {
 public:
  using Applied = std::function<void()>;

  // Installs it for steps that this thread makes, until the object's end.
  StepWatch();
  virtual ~StepWatch();
  StepWatch(const StepWatch&) = delete;
  StepWatch& operator=(const StepWatch&) = delete;

  // Returns the watch of this thread, or null.
  static StepWatch* installed();

  // Makes the optimizer's step by a call of `make`, unless it is made already. `make` calls its
  // argument as soon as the step has changed the parameters.
  virtual torch::Tensor step(const RankOptimizer& optimizer,
                             const std::function<torch::Tensor(const Applied&)>& make) = 0;
};

}  // namespace ciranda
