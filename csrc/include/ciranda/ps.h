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

// Downpour SGD (Dean et al. 2012): as Async, but gradients of so many steps are pushed as one, and
// the newest parameters are fetched after so many; between, a worker makes steps of plain SGD of
// its own, with the optimizer's learning rate. With Adagrad as the optimizer, which the servers
// run. broadcast_parameters() pushes what is left, and fetches.
struct Downpour {
  int n_push = 1;
  int n_fetch = 1;
};

// Elastic averaging (Zhang, Choromanska and LeCun 2015): each worker trains parameters of its own
// with any optimizer; after `period` steps they and the servers' come nearer to each other, by rho
// times the learning rate of what they differ by. The servers' are the result:
// broadcast_parameters() takes them.
struct EASGD {
  double rho = 0.0;
  int period = 1;
};

using AnyMode = std::variant<Async, SSP, Sync, Downpour, EASGD>;

// Who makes the optimizer's step.
enum class UpdateOn : std::uint8_t {
  kServer,  // of SGD, Adam, AdamW, Adagrad, RMSprop
  kWorker,  // and the servers add up what that has changed; always with EASGD
};

// The mean of the latest values that workers have given under this name, this one included; waits
// for no other worker. For a metric, where a ring would use allreduce(). Throws std::runtime_error.
double average(double value, const std::string& name = "value");

// What was done since init(), as this worker and the servers have counted it.
struct JobStats {
  struct Pushes {  // by what became of them
    std::uint64_t applied = 0;
    std::uint64_t duplicate = 0;  // decided before, and without effect
    std::uint64_t stale = 0;      // dropped by Async(max_staleness)
    std::uint64_t late = 0;       // dropped by Sync(backup_workers)
  };
  struct Worker {  // this one
    Pushes pushes;
    std::uint64_t pulls = 0;
    std::uint64_t pushed_bytes = 0;
    double waiting_s = 0;              // for answers
    double waiting_for_workers_s = 0;  // of that, while servers held an answer back for others
  } worker;
  struct OfWorker {  // what a server knows of one
    bool here = false;
    std::uint64_t pushes = 0;
    double waiting_for_workers_s = 0;
  };
  struct Server {
    std::uint64_t version = 0;  // pushes, or rounds, that its parameters have in them
    Pushes pushes;
    std::uint64_t pulls = 0;
    std::vector<std::uint64_t> staleness;  // pushes by theirs: 0, 1, 2, 3, 4 to 7, 8 to 15, ...
    std::uint64_t gradient_bytes = 0;      // read
    std::uint64_t parameter_bytes = 0;     // written to workers
    std::uint64_t held_bytes = 0;          // parameters and state
    double busy_s = 0;                     // spent on pushes
    double longest_in_queue_s = 0;         // that a push has waited for its turn
    std::uint64_t lost_pushes = 0;         // answered, and lost since the server was killed
    std::vector<OfWorker> workers;         // by rank
  };
  std::vector<Server> servers;
};

// Blocks for one answer of each server. Throws std::runtime_error.
JobStats stats();

}  // namespace ciranda::ps
