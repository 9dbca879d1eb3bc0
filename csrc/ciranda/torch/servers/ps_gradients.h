#pragma once

#include <memory>
#include <vector>

#include "ciranda/torch/process/servers.h"
#include "ciranda/torch/servers/served_parameters.h"
#include "core/base/mutex.h"

namespace ciranda {

// Pushes gradients that the servers add up in a vector next to the parameters. Pushes do not update
// the parameters; the coordinator does, see VectorWork. Thread-safe: calls wait for each other.
// Throws Exception.
class PsGradients final : public Puller {
 public:
  explicit PsGradients(std::shared_ptr<ps::Client> client);

  // Called once. Blocks, see ServedParameters::declare().
  void add_parameters(NamedParameters parameters) EXCLUDES(mutex_);
  // Adds the parameters' gradients to the vector `into`; a missing gradient counts as zeros. Blocks
  // until the servers have answered.
  void push(ps::VectorId into) EXCLUDES(mutex_);
  void pull() override EXCLUDES(mutex_);
  void begin_task() override { pull(); }
  void end_task() override {}

 private:
  const std::shared_ptr<ps::Client> client_;
  Mutex mutex_;
  ServedParameters parameters_ GUARDED_BY(mutex_);
  std::vector<at::Tensor> pushed_ GUARDED_BY(mutex_);  // by parameter: memory that servers read
};

// Makes the process's PsGradients and sets it as the puller. Throws what make_ps_step() throws.
std::shared_ptr<PsGradients> make_ps_gradients();

}  // namespace ciranda
