#include "ciranda/torch/process/rank_optimizer.h"

#include "core/base/assert.h"
#include "core/base/mutex.h"

namespace ciranda {
namespace {

struct ListedOptimizers {
  Mutex mutex;
  std::vector<RankOptimizer*> all GUARDED_BY(mutex);
};

ListedOptimizers& listed_optimizers() {
  static ListedOptimizers listed;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
  return listed;
}

thread_local StepWatch* watch_of_this_thread = nullptr;  // NOLINT: see StepWatch::installed()

}  // namespace

RankOptimizer::RankOptimizer(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {
  ListedOptimizers& listed = listed_optimizers();
  const MutexLock lock(listed.mutex);
  listed.all.push_back(this);
}

RankOptimizer::~RankOptimizer() {
  ListedOptimizers& listed = listed_optimizers();
  const MutexLock lock(listed.mutex);
  std::erase(listed.all, this);
}

std::vector<RankOptimizer*> RankOptimizer::all() {
  ListedOptimizers& listed = listed_optimizers();
  const MutexLock lock(listed.mutex);
  return listed.all;
}

StepWatch::StepWatch() {
  CIRANDA_ASSERT(watch_of_this_thread == nullptr);  // steps() refuses to be called in a block
  watch_of_this_thread = this;
}

StepWatch::~StepWatch() {
  watch_of_this_thread = nullptr;
}

StepWatch* StepWatch::installed() {
  return watch_of_this_thread;
}

}  // namespace ciranda
