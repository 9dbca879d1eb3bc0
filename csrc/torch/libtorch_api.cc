// The functions of <ciranda/torch.h>; init() and shutdown() are in default_world.cc.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ciranda/torch.h>

#include "torch/collectives.h"
#include "torch/default_world.h"
#include "torch/reduce_op.h"
#include "torch/tensor_view.h"

namespace ciranda {

int rank() {
  return default_place().rank;
}
int size() {
  return default_place().size;
}
int local_rank() {
  return default_place().local_rank;
}
int local_size() {
  return default_place().local_size;
}
int cross_rank() {
  return default_place().cross_rank;
}
int cross_size() {
  return default_place().cross_size;
}

torch::Tensor allreduce(const torch::Tensor& tensor, Op op, const std::string& name) {
  check_usable(tensor, "allreduce");
  const at::NoGradGuard no_grad;
  const torch::Tensor output = at::empty_like(tensor);
  allreduce(tensor, output, {.name = name, .op = reduce_op(op)});
  return output;
}

void allreduce_(torch::Tensor tensor, Op op, const std::string& name) {
  allreduce(tensor, tensor, {.name = name, .op = reduce_op(op)});
}

void broadcast_(torch::Tensor tensor, int root_rank, const std::string& name) {
  synchronize(broadcast_async({tensor}, {tensor}, root_rank, name));
}

void barrier() {
  synchronize(barrier_async(""));
}

void broadcast_parameters(const torch::nn::Module& module, int root_rank) {
  std::vector<at::Tensor> tensors = module.parameters();
  const std::vector<at::Tensor> buffers = module.buffers();
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  if (!tensors.empty()) broadcast_tensors(tensors, root_rank, "broadcast_parameters");
}

}  // namespace ciranda
