#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ciranda/torch/process/servers.h"
#include "ciranda/torch/servers/served_parameters.h"
#include "core/base/mutex.h"

namespace ciranda {

// The step of any optimizer in a job with parameter servers: this worker makes the step, and the
// servers add up the changes. Thread-safe: calls wait for each other. Throws Exception.
//
// Elastic averaging (EASGD, Zhang, Choromanska and LeCun 2015) lets the worker train its own
// parameters. Every `period` steps its parameters and the servers' move towards each other, by rho
// times the learning rate of their difference.
class PsDifferences final : public Puller {
 public:
  struct Options {
    ps::Mode mode;
    double rho = 0.0;
    int period = 0;  // 0: not elastic
  };
  PsDifferences(std::shared_ptr<ps::Client> client, Options options);

  // Called once. Blocks, see ServedParameters::declare().
  void add_parameters(NamedParameters parameters) EXCLUDES(mutex_);
  // Called before the optimizer's step. Throws kInvalidArgument if a parameter is not as the latest
  // push() left it.
  void begin() EXCLUDES(mutex_);
  // Called after the optimizer's step. Pushes the changes; afterwards the parameters have the
  // servers' values. Elastic averaging pushes only in every `period`-th call, and moves the
  // parameters towards the servers'. It needs `rates`, the learning rate of each parameter. Blocks
  // as long as the mode requires. Throws kInvalidArgument if rho times a rate is above 1.
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
  std::vector<at::Tensor> before_ GUARDED_BY(mutex_);  // by parameter: memory of what is pushed
  int steps_ GUARDED_BY(mutex_) = 0;                   // since the latest averaging
};

// Makes the process's PsDifferences and sets it as the puller. Throws what make_ps_step()
// throws.
std::shared_ptr<PsDifferences> make_ps_differences(PsDifferences::Options options);

}  // namespace ciranda
