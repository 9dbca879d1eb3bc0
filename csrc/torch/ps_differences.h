#pragma once

#include <memory>

#include "core/base/mutex.h"
#include "torch/served_parameters.h"
#include "torch/servers.h"

namespace ciranda {

// The step of any optimizer in a job with parameter servers: this worker makes it, and the servers
// add up what it has changed. Thread-safe: calls wait for each other. Throws Exception.
class PsDifferences final : public Puller {
 public:
  PsDifferences(std::shared_ptr<ps::Client> client, ps::Mode mode);

  // Once. Blocking, see ServedParameters::declare().
  void add_parameters(NamedParameters parameters) EXCLUDES(mutex_);
  // The optimizer steps from here on. kInvalidArgument where a parameter is not what the latest
  // push() has left.
  void begin() EXCLUDES(mutex_);
  // It has stepped: the parameters are the servers' afterwards. Blocks as the mode says.
  void push() EXCLUDES(mutex_);
  void pull() override EXCLUDES(mutex_);

 private:
  const std::shared_ptr<ps::Client> client_;
  Mutex mutex_;
  ServedParameters parameters_ GUARDED_BY(mutex_);
  std::vector<at::Tensor> before_ GUARDED_BY(mutex_);  // by parameter; what is pushed
};

// Of this process; throws as make_ps_reducer() does.
std::shared_ptr<PsDifferences> make_ps_differences(ps::Mode mode);

}  // namespace ciranda
