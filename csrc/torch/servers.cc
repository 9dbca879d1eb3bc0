#include "torch/servers.h"

#include <c10/util/StringUtil.h>
#include <ciranda/torch.h>

#include "core/base/mutex.h"
#include "torch/default_world.h"
#include "torch/error.h"

namespace ciranda {
namespace {

constexpr double kMomentumMax = 0.5;
constexpr std::uint64_t kStalenessMax = 2;

// How old a gradient may be, in pushes or, with bounded staleness, in steps.
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

namespace {

Mutex puller_mutex;                                     // NOLINT
std::weak_ptr<Puller> puller GUARDED_BY(puller_mutex);  // NOLINT: of the process

}  // namespace

void set_puller(const std::shared_ptr<Puller>& who) {
  const MutexLock lock(puller_mutex);
  puller = who;
}

void pull_newest(int root_rank, bool all_ranks, std::string_view what) {
  if (root_rank != 0 || !all_ranks) {
    throw Exception({.code = ErrorCode::kInvalidArgument,
                     .text = c10::str(what,
                                      ": parameter servers begin with the parameters of rank "
                                      "0 for all ranks; pass root_rank 0 and no process "
                                      "set")});
  }
  std::shared_ptr<Puller> who;
  {
    const MutexLock lock(puller_mutex);
    who = puller.lock();
  }
  if (who) who->pull();
}

double server_average(const std::string& name, double value) {
  return unwrap(servers("ps.average")->average(name, value));
}

void check_mode(const ps::Mode& mode, int workers) {
  if (mode.kind != ps::ModeKind::kSync) return;
  if (mode.backup_workers < static_cast<std::uint32_t>(workers)) return;
  throw Exception(
      {.code = ErrorCode::kInvalidArgument,
       .text = c10::str("DistributedOptimizer: Sync(backup_workers=", mode.backup_workers,
                        ") waits for none of ", workers, " workers; give less than there are")});
}

void check_momentum(const ps::Mode& mode, int workers, std::span<const kernels::UpdateRule> rules) {
  if (staleness_of(mode, workers) <= kStalenessMax) return;
  for (const kernels::UpdateRule& rule : rules) {
    const bool has_momentum =
        rule.kind == kernels::RuleKind::kSgd || rule.kind == kernels::RuleKind::kRmsprop;
    if (!has_momentum || rule.momentum <= kMomentumMax) continue;
    throw Exception(
        {.code = ErrorCode::kInvalidArgument,
         .text = c10::str("DistributedOptimizer: momentum ", rule.momentum,
                          " with gradients that may be more than ", kStalenessMax,
                          " pushes old usually diverges, as old gradients act like "
                          "more momentum; use at most ",
                          kMomentumMax, ", Sync() or SSP(", kStalenessMax, "), or pass force")});
  }
}

}  // namespace ciranda
