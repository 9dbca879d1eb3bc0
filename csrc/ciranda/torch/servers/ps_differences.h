#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ciranda/torch/process/servers.h"
#include "ciranda/torch/servers/served_parameters.h"
#include "core/base/mutex.h"

namespace ciranda {

// The step of any optimizer in a job with parameter servers: this worker makes it, and the servers
// add up what it has changed. Thread-safe: calls wait for each other. Throws Exception.
//
// Elastic averaging (EASGD; Zhang, Choromanska and LeCun 2015) is the same with parameters of the
// worker's own: after `period` steps they and the servers' come nearer to each other, by rho times
// the learning rate of what they differ by.
class PsDifferences final : public Puller {
 public:
  struct Options {
    ps::Mode mode;
    double rho = 0.0;
    int period = 0;  // 0: not elastic
  };
  PsDifferences(std::shared_ptr<ps::Client> client, Options options);

  // Once. Blocking, see ServedParameters::declare().
  void add_parameters(NamedParameters parameters) EXCLUDES(mutex_);
  // The optimizer steps from here on. kInvalidArgument where a parameter is not what the latest
  // push() has left.
  void begin() EXCLUDES(mutex_);
  // It has stepped: the parameters are the servers' afterwards, or with elastic averaging nearer to
  // theirs, where it is time. `rates`: the learning rates then, by parameter. Blocks as the mode
  // says. kInvalidArgument where rho times a rate is above 1.
  void push(std::span<const double> rates = {}) EXCLUDES(mutex_);
  void pull() override EXCLUDES(mutex_);
  void begin_task() override EXCLUDES(mutex_);
  void end_task() override {}

 private:
  bool is_elastic() const { return options_.period > 0; }
  void come_nearer(std::span<const double> rates) REQUIRES(mutex_);
  void send(std::span<const std::uint64_t> versions) REQUIRES(mutex_);

  const std::shared_ptr<ps::Client> client_;
  const Options options_;
  Mutex mutex_;
  ServedParameters parameters_ GUARDED_BY(mutex_);
  std::vector<at::Tensor> before_ GUARDED_BY(mutex_);  // by parameter; what is pushed
  int steps_ GUARDED_BY(mutex_) = 0;                   // since they came nearer
};

// Of this process; throws as make_ps_reducer() does.
std::shared_ptr<PsDifferences> make_ps_differences(PsDifferences::Options options);

}  // namespace ciranda
