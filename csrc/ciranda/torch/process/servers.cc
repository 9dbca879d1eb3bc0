#include "ciranda/torch/process/servers.h"

#include <c10/util/StringUtil.h>
#include <ciranda/torch.h>

#include "ciranda/torch/process/default_world.h"
#include "ciranda/torch/tensor/error.h"
#include "core/base/assert.h"
#include "core/base/mutex.h"

namespace ciranda {
namespace {

constexpr double kMomentumMax = 0.5;
constexpr std::uint64_t kStalenessMax = 2;

// Returns how old a gradient may be: in steps with SSP, else in pushes.
std::uint64_t staleness_of(const ps::Mode& mode, int workers) {
  if (workers == 1) return 0;
  switch (mode.kind) {
    case ps::ModeKind::kAsync:
      return mode.policy == ps::StalePolicy::kDrop ? mode.max_staleness : ps::kUnboundedStaleness;
    case ps::ModeKind::kSsp:
      return mode.staleness;
    case ps::ModeKind::kSync:
      return 0;
  }
  return 0;
}

double seconds(std::uint64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

ps::JobStats::Pushes by_outcome(std::span<const std::uint64_t> outcomes) {
  const auto of = [&](ps::Outcome outcome) {
    const auto at = static_cast<std::size_t>(outcome);
    return at < outcomes.size() ? outcomes[at] : 0;
  };
  return {.applied = of(ps::Outcome::kApplied),
          .duplicate = of(ps::Outcome::kDuplicate),
          .stale = of(ps::Outcome::kStale),
          .late = of(ps::Outcome::kLate)};
}

ps::JobStats::Server public_stats(const ps::Stats& stats) {
  ps::JobStats::Server server{.version = stats.version,
                              .pushes = by_outcome(stats.outcomes),
                              .pulls = stats.pulls,
                              .staleness = stats.staleness,
                              .gradient_bytes = stats.gradient_bytes,
                              .parameter_bytes = stats.parameter_bytes,
                              .held_bytes = stats.held_bytes,
                              .busy_s = seconds(stats.busy_ns),
                              .longest_in_queue_s = seconds(stats.oldest_ns),
                              .lost_pushes = stats.lost,
                              .workers = {}};
  for (const ps::WorkerStats& each : stats.workers) {
    server.workers.push_back(
        {.here = each.here, .pushes = each.pushes, .waiting_for_workers_s = seconds(each.held_ns)});
  }
  return server;
}

}  // namespace

int server_count() {
  if (in_forked_child() || !is_initialized()) return 0;
  const auto client = default_client();
  return client == nullptr ? 0 : client->servers();
}

std::shared_ptr<ps::Client> servers(std::string_view what) {
  auto client = default_client();
  if (client != nullptr) return client;
  throw Exception({.code = ErrorCode::kInvalidArgument,
                   .text = c10::str(what,
                                    ": this job has no parameter servers; start it with "
                                    "ciranda run --ps 1")});
}

std::shared_ptr<ps::Client> worker_of_servers(std::string_view what) {
  auto client = servers(what);
  if (!client->coordinates()) return client;
  throw Exception({.code = ErrorCode::kInvalidArgument,
                   .text = c10::str(what,
                                    ": this process is the coordinator, which trains nothing; do "
                                    "this in a task, or in a function with @ps.per_worker")});
}

namespace {

Mutex puller_mutex;                                         // NOLINT
std::weak_ptr<Puller> the_puller GUARDED_BY(puller_mutex);  // NOLINT

}  // namespace

void set_puller(const std::shared_ptr<Puller>& who) {
  CIRANDA_ASSERT(who != nullptr);
  const MutexLock lock(puller_mutex);
  the_puller = who;
}

std::shared_ptr<Puller> puller() {
  const MutexLock lock(puller_mutex);
  return the_puller.lock();
}

void pull_newest(int root_rank, bool all_ranks, std::string_view what) {
  if (root_rank != 0 || !all_ranks) {
    throw Exception({.code = ErrorCode::kInvalidArgument,
                     .text = c10::str(what,
                                      ": parameter servers begin with the parameters of rank 0; "
                                      "pass root_rank=0 and no process set")});
  }
  (void)worker_of_servers(what);
  if (const auto who = puller()) who->pull();
}

void check_mode(const ps::Mode& mode, int workers) {
  if (mode.kind != ps::ModeKind::kSync) return;
  if (mode.backup_workers < static_cast<std::uint32_t>(workers)) return;
  throw Exception({.code = ErrorCode::kInvalidArgument,
                   .text = c10::str("DistributedOptimizer: Sync(backup_workers=",
                                    mode.backup_workers, ") would wait for none of the ", workers,
                                    " workers; give fewer backup workers than workers")});
}

void check_momentum(const ps::Mode& mode, int workers, std::span<const kernels::UpdateRule> rules) {
  if (staleness_of(mode, workers) <= kStalenessMax) return;
  for (const kernels::UpdateRule& rule : rules) {
    if (!kernels::facts_of(rule.kind).has_momentum || rule.momentum <= kMomentumMax) continue;
    throw Exception(
        {.code = ErrorCode::kInvalidArgument,
         .text = c10::str("DistributedOptimizer: momentum ", rule.momentum,
                          " with gradients that may be more than ", kStalenessMax,
                          " pushes old usually diverges, as old gradients act like "
                          "more momentum; use at most ",
                          kMomentumMax, ", Sync() or SSP(", kStalenessMax, "), or pass force")});
  }
}

namespace ps {

double average(double value, const std::string& name) {
  return unwrap(worker_of_servers("ps.average")->average(name, value));
}

JobStats stats() {
  const auto client = servers("ps.stats");
  JobStats all;
  for (const Stats& each : unwrap(client->stats())) all.servers.push_back(public_stats(each));
  const ClientStats own = client->parameters().stats();
  all.worker = {.pushes = by_outcome(own.outcomes),
                .pulls = own.pulls,
                .pushed_bytes = own.pushed_bytes,
                .waiting_s = seconds(own.waiting_ns),
                .waiting_for_workers_s = seconds(own.held_ns)};
  return all;
}

}  // namespace ps
}  // namespace ciranda
