#pragma once

#include <ciranda/distributed_options.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

// ciranda for LibTorch programs:
//
//   ciranda::init();
//   ciranda::DistributedOptimizer optimizer(torch::optim::Adam(model->parameters(), 1e-3),
//                                           model->named_parameters());
//   ciranda::broadcast_parameters(*model, 0);
//   ...
//   optimizer.zero_grad(); loss.backward(); optimizer.step();
//
// `ciranda run -np 4 ./program`, mpirun, srun and torchrun start the ranks; without a starter there
// is one rank. Errors are std::runtime_error with one sentence that names the operation, the rank
// at fault and what to do; docs/errors.md lists them.
namespace ciranda {

// --- The job ---

// Meets the other ranks; blocks at most CIRANDA_START_TIMEOUT_SECONDS (30). No effect when already
// initialized. Thread-safe, as are all functions of this file.
void init();
// Says goodbye to them, so that they need not think this rank died. By itself when main() returns.
void shutdown();
bool is_initialized();

// This rank's number, 0 to size() - 1, and the same on its host; the number of the host.
int rank();
int size();
int local_rank();
int local_size();
int cross_rank();
int cross_size();

// --- Collectives: every rank calls them with the same names, shapes and dtypes. Blocking. ---
//
// With a process set its members call them, among themselves; by itself all ranks do.
//
// An empty name means: the n-th unnamed operation of its kind on every rank. Tensors are dense,
// contiguous and on the CPU or a CUDA GPU. On a GPU "blocking" means until all ranks have queued
// the operation: what the current stream does from then on sees the result.

using Op = Job::Op;

// The reduction over the ranks, as a new tensor; allreduce_() in place.
torch::Tensor allreduce(const torch::Tensor& tensor, Op op = Op::kAverage,
                        const std::string& name = "", const ProcessSet& process_set = {});
void allreduce_(torch::Tensor tensor, Op op = Op::kAverage, const std::string& name = "",
                const ProcessSet& process_set = {});
// In place: every rank gets the root's values. `root_rank` is a rank of the job.
void broadcast_(torch::Tensor tensor, int root_rank, const std::string& name = "",
                const ProcessSet& process_set = {});
// Returns once every rank has called it, or has joined.
void barrier(const ProcessSet& process_set = {});

// Every rank gets the root's parameters and buffers, in place, of any layout and dtype. With
// parameter servers: takes the newest parameters that they hold, waiting for nobody.
void broadcast_parameters(const torch::nn::Module& module, int root_rank,
                          const ProcessSet& process_set = {});

// --- Who takes part: all ranks of the job call these in the same order. Blocking. ---

// Also for sets of other ranks. A set's ranks come in any order, each once; throws on
// every rank where the ranks mean different ones or a set of these is there already.
ProcessSet add_process_set(std::vector<int> ranks);
// Throws on every rank while an operation of the set is pending.
void remove_process_set(const ProcessSet& process_set);
// That of all ranks; no other rank need call it.
ProcessSet global_process_set();

// This rank has no more data: returns once every rank has called it, with the one that did so last.
// Until then it counts as present, and adds zeros to the others' sums and averages, gradients too.
// What has no zero (kMin, kMax, kProduct, broadcast, changes of process sets) throws where it is
// called. A shared step of the others writes this rank's parameters and state too.
int join();

// --- The optimizer ---

// What DistributedOptimizer adds to an optimizer, whatever its class.
class DistributedStep {
 public:
  using Closure = torch::optim::Optimizer::LossClosure;
  using InnerStep = std::function<torch::Tensor(Closure)>;

  // `optimizer`, of class `type`, outlives this.
  DistributedStep(torch::optim::Optimizer& optimizer, const std::type_info& type,
                  const torch::OrderedDict<std::string, torch::Tensor>& named_parameters,
                  const DistributedOptions& options);
  ~DistributedStep();

  void synchronize();
  torch::Tensor step(const Closure& closure, const InnerStep& inner);
  void forget_gradients();                        // of the step that has begun
  void adopt_param_group();                       // the optimizer has a new one
  void adopt_state();                             // the optimizer's state comes from elsewhere
  void save(const std::function<void()>& inner);  // which saves what the optimizer has
  double grad_norm() const;
  const std::string& why_not_shared() const;

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

// `Optimizer` that steps on gradients reduced over the ranks. It stays the user's optimizer: state,
// param groups, learning-rate schedulers, torch::save and torch::load are what they were.
//
// Gradients lie in memory that the ranks of a host share, and backward() returns with the reduced
// ones (docs/optimizer.md says what a gradient holds when). The ranks may share the step too, see
// SharedStepMode. Every rank makes the same optimizers in the same order and calls the same
// methods; making one compares parameters and options of all ranks. init() comes first, shutdown()
// after. Of one over a process set all this is said of its members.
//
// Like torch's, not thread-safe.
template <typename Optimizer>
class DistributedOptimizer final : public Optimizer {
 public:
  using typename Optimizer::LossClosure;

  // `named_parameters` usually are model->named_parameters(); they name all parameters of
  // `optimizer`, in the errors too, and order the buckets. Blocking.
  DistributedOptimizer(Optimizer optimizer,
                       const torch::OrderedDict<std::string, torch::Tensor>& named_parameters,
                       const DistributedOptions& options = {})
      : Optimizer(std::move(optimizer)),
        distributed_(*this, typeid(Optimizer), named_parameters, options) {}
  DistributedOptimizer(const DistributedOptimizer&) = delete;
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  // Blocks until every gradient is the reduced one. backward() has done it where it ran
  // backward_passes_per_step times, and step() does it by itself.
  void synchronize() { distributed_.synchronize(); }

  // synchronize(), then the optimizer's own step, or the one that the ranks share. Blocking.
  torch::Tensor step(LossClosure closure = nullptr) override {
    return distributed_.step(
        closure, [this](LossClosure reduced) { return Optimizer::step(std::move(reduced)); });
  }

  // As the optimizer's own. What backward passes have added up for this step is forgotten.
  void zero_grad(bool set_to_none = true) {
    distributed_.forget_gradients();
    Optimizer::zero_grad(set_to_none);
  }

  // As the optimizer's own, on every rank; the new parameters' gradients are reduced too.
  void add_param_group(const torch::optim::OptimizerParamGroup& group) {
    Optimizer::add_param_group(group);
    distributed_.adopt_param_group();
  }

  // As the optimizer's own, of the same file on every rank; no rank waits for another.
  void load(torch::serialize::InputArchive& archive) override {
    Optimizer::load(archive);
    distributed_.adopt_state();
  }

  // As the optimizer's own; what parameter servers hold is fetched.
  void save(torch::serialize::OutputArchive& archive) const override {
    distributed_.save([&] { Optimizer::save(archive); });
  }

  // With max_grad_norm: the norm of the latest step's gradients, before clipping.
  // Waits for a GPU that has not computed it yet.
  double grad_norm() const { return distributed_.grad_norm(); }
  // Why the ranks do not share the step, as the rest of a sentence; empty if they do.
  const std::string& why_not_shared() const { return distributed_.why_not_shared(); }

 private:
  mutable DistributedStep distributed_;
};

}  // namespace ciranda
