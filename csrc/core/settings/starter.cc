#include "core/settings/starter.h"

#include <array>
#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>

#include "core/base/assert.h"
#include "core/wire/types.h"

namespace ciranda {
namespace {

constexpr std::array<Starter, 6> kStarters = {{
    {"ciranda", "CIRANDA_RANK", "CIRANDA_SIZE", "CIRANDA_LOCAL_RANK", "CIRANDA_LOCAL_SIZE",
     "CIRANDA_JOB_ID", nullptr, "CIRANDA_CROSS_RANK", "CIRANDA_CROSS_SIZE"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT", nullptr,
     "GROUP_RANK", "GROUP_WORLD_SIZE"},
    {"horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE",
     "HOROVOD_GLOO_RENDEZVOUS_PORT", nullptr, "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"},
    {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID"},
    // These are variables of a step: those of its allocation are also set in the batch script and
    // in smaller steps. Slurm has no plain number for the tasks of this host.
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr, "SLURM_JOB_ID",
     "SLURM_STEP_ID", "SLURM_NODEID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST"},
}};
constexpr const char* kSlurmTasks = "SLURM_STEP_TASKS_PER_NODE";

bool is_found(const Environment& env, const Starter& starter) {
  return env.text(starter.rank) != nullptr && env.text(starter.size) != nullptr;
}

// Reads Slurm's short form of a number for each node, such as "2(x3),1". Returns 0 if that node has
// no number.
int tasks_of_node(std::string_view text, int node) {
  CIRANDA_ASSERT(node >= 0);
  const auto number = [&text] {
    int value = 0;
    const auto [rest, problem] = std::from_chars(text.begin(), text.end(), value);
    text.remove_prefix(static_cast<std::size_t>(rest - text.begin()));
    return problem == std::errc{} ? value : 0;
  };
  for (;; text.remove_prefix(1)) {
    const int tasks = number();
    int nodes = 1;
    if (text.starts_with("(x")) {
      text.remove_prefix(2);
      nodes = number();
      if (!text.starts_with(')')) return 0;
      text.remove_prefix(1);
    }
    if (node < nodes) return tasks;
    node -= nodes;
    if (!text.starts_with(',')) return 0;
  }
}

Status read_slurm_tasks(const Environment& env, RankInfo& rank_info) {
  const char* tasks = env.text(kSlurmTasks);
  if (tasks == nullptr) tasks = "";
  rank_info.local_size = tasks_of_node(tasks, rank_info.cross_rank);
  if (rank_info.local_size > 0 && rank_info.local_size <= rank_info.size) return {};
  return bad_value(kSlurmTasks, tasks,
                   "the tasks of each node, such as 2(x3),1, and this is node " +
                       std::to_string(rank_info.cross_rank));
}

// Finds the host of a rank that is not alone on one, if the starter says only the local rank and
// the number of local ranks.
Status place_on_hosts(const Starter& starter, RankInfo& rank_info) {
  if (rank_info.local_rank >= rank_info.local_size || rank_info.local_rank > rank_info.rank) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .text = "rank " + std::to_string(rank_info.rank) + " is local rank " +
                         std::to_string(rank_info.local_rank) + " of " +
                         std::to_string(rank_info.local_size) + " according to " + starter.name +
                         "; set " + starter.local_rank +
                         " to count from 0 within each host, in the order of the ranks"};
  }
  if (rank_info.cross_size > 1) return {};
  if (rank_info.size % rank_info.local_size != 0 ||
      rank_info.rank % rank_info.local_size != rank_info.local_rank) {
    return Error{
        .code = ErrorCode::kUnsupported,
        .text =
            std::string(starter.name) + " does not tell the host of rank " +
            std::to_string(rank_info.rank) + " of " + std::to_string(rank_info.size) +
            ", which is local rank " + std::to_string(rank_info.local_rank) + " of " +
            std::to_string(rank_info.local_size) +
            "; let it number the ranks host by host, with the same number of ranks on each host"};
  }
  rank_info.cross_size = rank_info.size / rank_info.local_size;
  rank_info.cross_rank = rank_info.rank / rank_info.local_size;
  CIRANDA_ASSERT(rank_info.cross_size > 1 && rank_info.cross_rank < rank_info.cross_size);
  return {};
}

}  // namespace

const Starter* find_starter(const Environment& env) {
  for (const Starter& starter : kStarters) {
    if (!is_found(env, starter)) continue;
    // srun --mpi=pmi2 also sets variables of mpiexec, but only some.
    const bool partly =
        starter.name == std::string_view("mpiexec") && !env.text(starter.local_rank);
    return partly && is_found(env, kStarters.back()) ? &kStarters.back() : &starter;
  }
  return nullptr;
}

Status read_rank_info(const Environment& env, const Starter& starter, RankInfo& rank_info) {
  CIRANDA_TRY(env.integer(starter.size, 1, kRanksMax, rank_info.size));
  CIRANDA_TRY(env.integer(starter.rank, 0, rank_info.size - 1, rank_info.rank));
  // The default: every rank is on this host.
  rank_info.local_size = rank_info.size;
  rank_info.local_rank = rank_info.rank;
  CIRANDA_TRY(env.integer(starter.cross_size, 1, rank_info.size, rank_info.cross_size));
  if (rank_info.cross_size > 1) {
    CIRANDA_TRY(env.integer(starter.cross_rank, 0, rank_info.cross_size - 1, rank_info.cross_rank));
    if (starter.local_size == nullptr) CIRANDA_TRY(read_slurm_tasks(env, rank_info));
  }
  CIRANDA_TRY(env.integer(starter.local_size, 1, rank_info.size, rank_info.local_size));
  CIRANDA_TRY(env.integer(starter.local_rank, 0, rank_info.local_size - 1, rank_info.local_rank));
  if (rank_info.local_size == rank_info.size) {
    if (rank_info.local_rank != rank_info.rank) {
      return Error{.code = ErrorCode::kInvalidArgument,
                   .text = std::string(starter.local_rank) + " is " +
                           std::to_string(rank_info.local_rank) + " for rank " +
                           std::to_string(rank_info.rank) + " of " +
                           std::to_string(rank_info.size) +
                           ", and all ranks are on this host; set it to the rank, or say how many "
                           "ranks are on this host" +
                           (starter.local_size != nullptr ? std::string(" by ") + starter.local_size
                                                          : std::string())};
    }
    rank_info.cross_rank = 0;
    rank_info.cross_size = 1;
    return {};
  }
  return place_on_hosts(starter, rank_info);
}

}  // namespace ciranda
