#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/kernels/update_rule.h"
#include "core/ps/decide/model.h"
#include "core/ps/io/client.h"

namespace ciranda {

// The parameter servers of this job, for programs in Python and in C++ alike. All functions are
// thread-safe.

// Returns the number of servers; 0 in a World, before init() and in a forked child.
int server_count();
// Returns the connection to the servers. Throws what default_client() throws, and
// kInvalidArgument, with a text that begins with `what`, if the job has no servers.
std::shared_ptr<ps::Client> servers(std::string_view what);
// As servers(), but also throws kInvalidArgument in the coordinator, which is no worker.
std::shared_ptr<ps::Client> worker_of_servers(std::string_view what);

// An object that trains parameters which the servers hold. A process has one, since servers hold
// one model.
class Puller {
 public:
  Puller() = default;
  virtual ~Puller() = default;
  Puller(const Puller&) = delete;
  Puller& operator=(const Puller&) = delete;
  // Fetches the newest parameters, which contain every worker's pushes. Blocks.
  virtual void pull() = 0;
  // Begins a task of the coordinator: all pushes until end_task() belong to it. Fetches the newest
  // parameters, unless the worker has its own (EASGD). Blocks.
  virtual void begin_task() = 0;
  // Ends the task: pushes the gradients that have not been pushed yet.
  virtual void end_task() = 0;
};
void set_puller(const std::shared_ptr<Puller>& puller);  // replaces the process's; held weakly
std::shared_ptr<Puller> puller();                        // null: none
// Implements a broadcast of parameters that the servers hold: the puller pulls. Blocks. Throws
// kInvalidArgument, with a text that begins with `what`, if `root_rank` is not 0, `all_ranks` is
// false, or this process is the coordinator.
void pull_newest(int root_rank, bool all_ranks, std::string_view what);

// Throws kInvalidArgument if the mode is impossible with `workers` workers.
void check_mode(const ps::Mode& mode, int workers);
// Throws kInvalidArgument if a rule usually diverges in the mode: a momentum above 0.5 when
// gradients may be more than 2 pushes old. Stale gradients act like additional momentum
// (Mitliagkas et al. 2016).
void check_momentum(const ps::Mode& mode, int workers, std::span<const kernels::UpdateRule> rules);

}  // namespace ciranda
