#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/kernels/update_rule.h"
#include "core/ps/decide/model.h"
#include "core/ps/io/client.h"

namespace ciranda {

// The parameter servers of this job, for programs in Python and in C++ alike. Thread-safe.

// How many; 0 in a World, and before init().
int server_count();
// The connection to them. Throws what default_client() does, and kInvalidArgument, beginning with
// `what`, where the job has none.
std::shared_ptr<ps::Client> servers(std::string_view what);
// Of a worker, which the coordinator is not: kInvalidArgument there.
std::shared_ptr<ps::Client> worker_of_servers(std::string_view what);

// Who has parameters of the servers. One in a process: servers hold one model.
class Puller {
 public:
  Puller() = default;
  virtual ~Puller() = default;
  Puller(const Puller&) = delete;
  Puller& operator=(const Puller&) = delete;
  // Takes the newest parameters, of all workers' pushes. Blocking.
  virtual void pull() = 0;
  // What it pushes from here on belongs to a task that a coordinator has given, and was given with
  // the newest parameters, where they are not the worker's own; until end_task(), by which all of
  // it has been pushed. Blocking.
  virtual void begin_task() = 0;
  virtual void end_task() = 0;
};
void set_puller(const std::shared_ptr<Puller>& puller);  // the one from here on
std::shared_ptr<Puller> puller();                        // null: none
// What it means to broadcast parameters from `root_rank` where the servers hold them: the puller
// pulls. kInvalidArgument, beginning with `what`, unless `root_rank` is 0 and all ranks are meant.
void pull_newest(int root_rank, bool all_ranks, std::string_view what);

// What of a mode cannot be, kInvalidArgument.
void check_mode(const ps::Mode& mode, int workers);
// Rules that such a mode makes diverge as a rule, kInvalidArgument: momentum above 0.5, which
// stale gradients add to (Mitliagkas et al. 2016), where gradients may be more than 2 pushes old.
void check_momentum(const ps::Mode& mode, int workers, std::span<const kernels::UpdateRule> rules);

}  // namespace ciranda
