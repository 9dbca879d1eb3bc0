#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

// Parameter servers for LibTorch programs: `ciranda run -np 4 --ps 2 ./program` starts them, and
//
//   ciranda::DistributedOptimizer optimizer(torch::optim::Adagrad(model->parameters(), 0.01),
//                                           model->named_parameters(),
//                                           {.mode = ciranda::ps::Async{}});
//
// trains with them. The servers hold the parameters and the optimizer's state; they begin with rank
// 0's parameters. docs/parameter-server.md says which mode to choose.
namespace ciranda::ps {

// Servers apply each push at once; no worker waits for another. A gradient's staleness is the
// number of pushes that other workers made since its worker last got the parameters.
struct Async {
  int ahead = 0;  // 1: step() returns before the servers have answered
  std::optional<std::uint64_t> max_staleness = {};  // with kDrop
  enum class Policy : std::uint8_t {
    kApply,
    kScale,  // multiply the gradient by 1 / max(1, staleness)
    kDrop,   // drop the gradient if its staleness is above max_staleness
  } policy = Policy::kApply;
};

// Stale synchronous parallel (Ho et al. 2013): as Async, but a worker that is more than `staleness`
// steps ahead of the slowest worker waits in step().
struct SSP {
  std::uint64_t staleness = 0;
};

// Workers push in rounds; each step uses the mean of their gradients, as without servers. A round
// ends when all but `backup_workers` workers have pushed; later pushes of that round are dropped.
struct Sync {
  std::uint32_t backup_workers = 0;
};

// Downpour SGD (Dean et al. 2012): as Async, but a worker pushes the sum of `n_push` steps'
// gradients, and fetches the newest parameters every `n_fetch` steps. It makes plain SGD steps in
// between, with the optimizer's learning rate. The servers run the optimizer, which is Adagrad in
// the paper. broadcast_parameters() pushes the remaining gradients, and fetches.
struct Downpour {
  int n_push = 1;
  int n_fetch = 1;
};

// Elastic averaging (Zhang, Choromanska and LeCun 2015): each worker trains its own parameters with
// any optimizer. Every `period` steps its parameters and the servers' move towards each other, both
// by their difference times rho times the learning rate. The servers' parameters are the result;
// broadcast_parameters() fetches them.
struct EASGD {
  double rho = 0.0;
  int period = 1;
};

using AnyMode = std::variant<Async, SSP, Sync, Downpour, EASGD>;

// Selects who makes the optimizer's step.
enum class UpdateOn : std::uint8_t {
  kServer,  // the servers; for SGD, Adam, AdamW, Adagrad, RMSprop
  kWorker,  // each worker, and the servers add up the changes; EASGD always does so
};

// Returns the mean of the latest values that the workers have passed under this name, with `value`
// for this worker. Waits for no other worker. Use it for metrics, instead of allreduce(). Throws
// std::runtime_error.
double average(double value, const std::string& name = "value");

// Counters since init(), of this worker and of the servers. Times are in seconds.
struct JobStats {
  struct Pushes {  // by outcome
    std::uint64_t applied = 0;
    std::uint64_t duplicate = 0;  // sent again, and applied once
    std::uint64_t stale = 0;      // dropped by Async::Policy::kDrop
    std::uint64_t late = 0;       // dropped by Sync::backup_workers
  };
  struct Worker {  // this worker
    Pushes pushes;
    std::uint64_t pulls = 0;
    std::uint64_t pushed_bytes = 0;
    double waiting_s = 0;              // for answers
    double waiting_for_workers_s = 0;  // the part of it in which servers waited for other workers
  } worker;
  struct OfWorker {  // a server's counters of one worker
    bool here = false;
    std::uint64_t pushes = 0;
    double waiting_for_workers_s = 0;
  };
  struct Server {
    std::uint64_t version = 0;  // pushes, or rounds, that are in its parameters
    Pushes pushes;
    std::uint64_t pulls = 0;
    std::vector<std::uint64_t> staleness;  // pushes of staleness 0, 1, 2, 3, 4 to 7, 8 to 15, ...
    std::uint64_t gradient_bytes = 0;      // read
    std::uint64_t parameter_bytes = 0;     // written to workers
    std::uint64_t held_bytes = 0;          // parameters and state
    double busy_s = 0;                     // spent on pushes
    double longest_in_queue_s = 0;         // the longest time that a push waited for its turn
    std::uint64_t lost_pushes = 0;         // answered, and lost when the server was killed
    std::vector<OfWorker> workers;         // by rank
  };
  std::vector<Server> servers;
};

// Blocks until each server has answered. Throws std::runtime_error.
JobStats stats();

}  // namespace ciranda::ps
