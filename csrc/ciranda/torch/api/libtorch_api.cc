// Implements the functions of <ciranda/torch.h>, except init(), shutdown(), is_initialized() and
// join(), which are in process/default_world.cc.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ciranda/torch.h>

#include "ciranda/torch/collective/collectives.h"
#include "ciranda/torch/collective/reduce_op.h"
#include "ciranda/torch/process/default_world.h"
#include "ciranda/torch/process/servers.h"
#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/tensor_view.h"
#include "core/job/job.h"

namespace ciranda {
namespace {

GroupId group_of(const ProcessSet& process_set) {
  return unwrap(number_of(process_set, *default_world()->engine()));
}

std::shared_ptr<const Communicator> among(const ProcessSet& process_set, const char* what) {
  return default_communicator(group_of(process_set), what);
}

}  // namespace

int rank() {
  return rank_of(&RankInfo::rank, "rank");
}
int size() {
  return own_rank_info().size;
}
int local_rank() {
  return rank_of(&RankInfo::local_rank, "local_rank");
}
int local_size() {
  return own_rank_info().local_size;
}
int cross_rank() {
  return own_rank_info().cross_rank;
}
int cross_size() {
  return own_rank_info().cross_size;
}

torch::Tensor allreduce(const torch::Tensor& tensor, Op op, const std::string& name,
                        const ProcessSet& process_set) {
  check_usable(tensor, "allreduce");
  const at::NoGradGuard no_grad;
  const torch::Tensor output = at::empty_like(tensor);
  allreduce(*among(process_set, "allreduce"), tensor, output, {.name = name, .op = reduce_op(op)});
  return output;
}

void allreduce_(torch::Tensor tensor, Op op, const std::string& name,
                const ProcessSet& process_set) {
  allreduce(*among(process_set, "allreduce"), tensor, tensor, {.name = name, .op = reduce_op(op)});
}

void broadcast_(torch::Tensor tensor, int root_rank, const std::string& name,
                const ProcessSet& process_set) {
  broadcast_async(*among(process_set, "broadcast"), {tensor}, {tensor}, root_rank, name)->wait();
}

void barrier(const ProcessSet& process_set) {
  barrier_async(*among(process_set, "barrier"), "")->wait();
}

void broadcast_parameters(const torch::nn::Module& module, int root_rank,
                          const ProcessSet& process_set) {
  if (server_count() > 0) {
    return pull_newest(root_rank, process_set.id() == 0, "broadcast_parameters");
  }
  std::vector<at::Tensor> tensors = module.parameters();
  const std::vector<at::Tensor> buffers = module.buffers();
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  if (tensors.empty()) return;
  broadcast_tensors(*among(process_set, "broadcast_parameters"), tensors, root_rank,
                    "broadcast_parameters");
}

ProcessSet add_process_set(std::vector<int> ranks) {
  return unwrap(make_process_set(*default_world()->engine(), std::move(ranks)));
}

void remove_process_set(const ProcessSet& process_set) {
  remove_group(group_of(process_set));
}

ProcessSet global_process_set() {
  return whole_process_set(*default_world()->engine());
}

}  // namespace ciranda
