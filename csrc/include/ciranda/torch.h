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

// Connects to the other ranks; blocks at most CIRANDA_START_TIMEOUT_SECONDS (30). Has no effect
// when already initialized. Thread-safe, as are all functions of this file.
void init();
// Tells the other ranks that this one leaves, so that they do not take it for dead. Called
// automatically when main() returns.
void shutdown();
bool is_initialized();

int rank();  // 0 to size() - 1
int size();
int local_rank();  // among the ranks of this host
int local_size();
int cross_rank();  // the host's number
int cross_size();  // the number of hosts

// --- Collectives: every rank calls them with the same names, shapes and dtypes. Blocking. ---
//
// A collective with a process set is called by the members of the set, and runs among them. A
// collective without a process set is called by all ranks.
//
// Operations with an empty name are matched by order: the n-th unnamed operation of a kind on one
// rank belongs to the n-th on every other rank. Tensors are dense, contiguous and on the CPU or a
// CUDA GPU. A call for a GPU blocks until all ranks have queued the operation; later work of the
// current stream sees the result.

using Op = Job::Op;

// Returns the reduction over the ranks as a new tensor; allreduce_() reduces in place.
torch::Tensor allreduce(const torch::Tensor& tensor, Op op = Op::kAverage,
                        const std::string& name = "", const ProcessSet& process_set = {});
void allreduce_(torch::Tensor tensor, Op op = Op::kAverage, const std::string& name = "",
                const ProcessSet& process_set = {});
// Replaces the tensor on every rank by the root's. `root_rank` is a rank of the job.
void broadcast_(torch::Tensor tensor, int root_rank, const std::string& name = "",
                const ProcessSet& process_set = {});
// Returns once every rank has called it or has joined.
void barrier(const ProcessSet& process_set = {});

// Replaces the parameters and buffers on every rank by the root's, in place; any layout and dtype.
// If the job has parameter servers, fetches their newest parameters instead, and waits for no other
// worker.
void broadcast_parameters(const torch::nn::Module& module, int root_rank,
                          const ProcessSet& process_set = {});

// --- Process sets and join(): all ranks of the job call them in the same order. Blocking. ---

// Makes a process set of `ranks`. Ranks that are not members call this function too. `ranks` may
// have any order, but no repetitions. Throws on every rank if the ranks pass different sets, or if
// a set of the same ranks exists.
ProcessSet add_process_set(std::vector<int> ranks);
// Throws on every rank while an operation of the set is pending.
void remove_process_set(const ProcessSet& process_set);
// Returns the set that contains every rank. Is not collective.
ProcessSet global_process_set();

// Says that this rank has no more data. Blocks until every rank has called it, and returns the rank
// that called it last. Meanwhile this rank adds zeros to the sums and averages of other ranks,
// including those of gradients. Operations without a zero (kMin, kMax, kProduct, broadcast, changes
// of process sets) throw on the ranks that call them. A shared step of the other ranks updates this
// rank's parameters and state too.
int join();

// --- The optimizer ---

// The part of DistributedOptimizer that does not depend on the optimizer's class.
class DistributedStep {
 public:
  using Closure = torch::optim::Optimizer::LossClosure;
  using InnerStep = std::function<torch::Tensor(Closure)>;

  // `optimizer` is of class `type`, and has to outlive this.
  DistributedStep(torch::optim::Optimizer& optimizer, const std::type_info& type,
                  const torch::OrderedDict<std::string, torch::Tensor>& named_parameters,
                  const DistributedOptions& options);
  ~DistributedStep();

  void synchronize();
  torch::Tensor step(const Closure& closure, const InnerStep& inner);
  void forget_gradients();                        // discards those of the current step
  void adopt_param_group();                       // takes over the optimizer's new parameter group
  void adopt_state();                             // takes over state that the optimizer has loaded
  void save(const std::function<void()>& inner);  // `inner` saves the optimizer
  double grad_norm() const;
  const std::string& why_not_shared() const;

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

// An `Optimizer` that steps on gradients reduced over the ranks. State, parameter groups,
// learning-rate schedulers, torch::save and torch::load work as before.
//
// Gradients lie in memory that the ranks of a host share, and backward() returns with reduced
// gradients (docs/optimizer.md says what p.grad holds when). The ranks may share the step too, see
// SharedStepMode. All ranks, or all members of the process set, construct the same optimizers in
// the same order and call the same methods. The constructor compares the ranks' parameters and
// options. Construct it after init(), and destroy it before shutdown().
//
// It is not thread-safe, like torch's optimizers.
template <typename Optimizer>
class DistributedOptimizer final : public Optimizer {
 public:
  using typename Optimizer::LossClosure;

  // `named_parameters` has all parameters of `optimizer`, usually model->named_parameters(). Errors
  // use the names, and the order of the buckets follows theirs. Blocking.
  DistributedOptimizer(Optimizer optimizer,
                       const torch::OrderedDict<std::string, torch::Tensor>& named_parameters,
                       const DistributedOptions& options = {})
      : Optimizer(std::move(optimizer)),
        distributed_(*this, typeid(Optimizer), named_parameters, options) {}
  DistributedOptimizer(const DistributedOptimizer&) = delete;
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  // Blocks until every gradient is reduced. Rarely needed: backward() does it in its
  // backward_passes_per_step-th call, and step() does it if gradients are left.
  void synchronize() { distributed_.synchronize(); }

  // Calls synchronize(), then makes the optimizer's own step or the shared step. Blocking.
  torch::Tensor step(LossClosure closure = nullptr) override {
    return distributed_.step(
        closure, [this](LossClosure reduced) { return Optimizer::step(std::move(reduced)); });
  }

  // Calls the optimizer's zero_grad(), and discards the gradients that backward passes have added
  // up for this step.
  void zero_grad(bool set_to_none = true) {
    distributed_.forget_gradients();
    Optimizer::zero_grad(set_to_none);
  }

  // Calls the optimizer's add_param_group(). Every rank has to call it; the new parameters'
  // gradients are reduced too.
  void add_param_group(const torch::optim::OptimizerParamGroup& group) {
    Optimizer::add_param_group(group);
    distributed_.adopt_param_group();
  }

  // Calls the optimizer's load(). Every rank has to load the same file; no rank waits for another.
  void load(torch::serialize::InputArchive& archive) override {
    Optimizer::load(archive);
    distributed_.adopt_state();
  }

  // Fetches the state that parameter servers hold, if any, and calls the optimizer's save().
  void save(torch::serialize::OutputArchive& archive) const override {
    distributed_.save([&] { Optimizer::save(archive); });
  }

  // Returns the norm of the latest step's gradients before clipping; 0 without max_grad_norm. Waits
  // for a GPU that has not computed it yet.
  double grad_norm() const { return distributed_.grad_norm(); }
  // Returns why the ranks do not share the step, as the rest of a sentence; empty if they do.
  const std::string& why_not_shared() const { return distributed_.why_not_shared(); }

 private:
  mutable DistributedStep distributed_;
};

}  // namespace ciranda
