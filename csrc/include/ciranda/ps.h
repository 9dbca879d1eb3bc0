#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

// Parameter servers for LibTorch programs: `ciranda run -np 4 --ps 2 ./program` starts them, and
//
//   ciranda::DistributedOptimizer optimizer(torch::optim::Adagrad(model->parameters(), 0.01),
//                                           model->named_parameters(),
//                                           {.mode = ciranda::ps::Async{}});
//
// trains with them: they hold the parameters and the optimizer's state, whose first values are rank
// 0's parameters. docs/parameter-server.md says which mode to choose.
namespace ciranda::ps {

// Each push takes effect at once, and no worker waits for another. The staleness of a gradient:
// pushes of others since the parameters that it was made from.
struct Async {
  int ahead = 0;  // 1: step() returns before the servers have answered
  std::optional<std::uint64_t> max_staleness = {};  // with kDrop
  enum class Policy : std::uint8_t {
    kApply,
    kScale,  // by 1 / max(1, staleness)
    kDrop,   // where the staleness is above max_staleness
  } policy = Policy::kApply;
};

// As Async, but a worker that is more steps than that ahead of the slowest waits in step().
struct SSP {
  std::uint64_t staleness = 0;
};

// Rounds: each step is made with the mean of the workers' gradients, as in a ring. A round waits
// for so many workers less as there are backups, and drops what they push too late.
struct Sync {
  std::uint32_t backup_workers = 0;
};

using AnyMode = std::variant<Async, SSP, Sync>;

// Who makes the optimizer's step.
enum class UpdateOn : std::uint8_t {
  kServer,  // of SGD, Adam, AdamW, Adagrad, RMSprop
  kWorker,  // and the servers add up what that has changed
};

// The mean of the latest values that workers have given under this name, this one included; waits
// for no other worker. For a metric, where a ring would use allreduce(). Throws std::runtime_error.
double average(double value, const std::string& name = "value");

}  // namespace ciranda::ps
