#pragma once

#include <memory>
#include <vector>

#include "ciranda/torch/process/servers.h"
#include "ciranda/torch/servers/served_parameters.h"
#include "core/base/mutex.h"

namespace ciranda {

// Gradients that servers add up in a vector beside the parameters, which a coordinator moves: see
// VectorWork. Thread-safe: calls wait for each other. Throws Exception.
class PsGradients final : public Puller {
 public:
  explicit PsGradients(std::shared_ptr<ps::Client> client);

  // Once. Blocking, see ServedParameters::declare().
  void add_parameters(NamedParameters parameters) EXCLUDES(mutex_);
  // Adds the parameters' gradients, those of one that has none being zeros, to the vector `into`.
  // Blocks for the answers.
  void push(ps::VectorId into) EXCLUDES(mutex_);
  void pull() override EXCLUDES(mutex_);
  void begin_task() override { pull(); }
  void end_task() override {}

 private:
  const std::shared_ptr<ps::Client> client_;
  Mutex mutex_;
  ServedParameters parameters_ GUARDED_BY(mutex_);
  std::vector<at::Tensor> pushed_ GUARDED_BY(mutex_);  // by parameter: where the servers read them
};

// Of this process; throws as make_ps_reducer() does.
std::shared_ptr<PsGradients> make_ps_gradients();

}  // namespace ciranda
