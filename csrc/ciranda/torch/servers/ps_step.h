#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ciranda/torch/gradient/gradient_buffer.h"
#include "ciranda/torch/process/servers.h"
#include "ciranda/torch/servers/served_parameters.h"
#include "ciranda/torch/step/step_types.h"
#include "core/base/mutex.h"

namespace ciranda {

// Pushes an optimizer's gradients to the parameter servers, which make its step and hold its state.
// p.grad stays this worker's gradient.
//
// A gradient is born in the memory that the servers read, if possible (see GradientPlace).
// Otherwise step() copies it there. Only step() is collective, as far as the mode requires.
class PsStep final : public Puller {
 public:
  struct Options {
    ps::Mode mode;
    // step() waits for the answer to the previous push, not for the answer to its own.
    bool ahead = false;
    bool force = false;  // skips check_momentum()
    // Downpour: the worker pushes the sum of `push_every` steps' gradients, and fetches the newest
    // parameters every `fetch_every` steps. It makes plain SGD steps on its own parameters in
    // between. 0: no Downpour.
    int push_every = 0;
    int fetch_every = 0;
  };
  PsStep(std::shared_ptr<ps::Client> client, Options options);

  // Adds all parameters, once. `rules` has the number of each parameter's update rule. Blocks.
  void add_parameters(NamedParameters parameters, std::vector<std::size_t> rules) EXCLUDES(mutex_);
  // Sets the update rule of the parameters with this number, from the next step() on.
  void set_rule(std::size_t number, const kernels::UpdateRule& rule) EXCLUDES(mutex_);
  // Makes the step, with gradients multiplied by `gradient_scale`. If max_norm > 0, the gradients
  // are clipped to that global 2-norm; norm() then returns the norm before clipping. Throws
  // kInvalidArgument for an objection, or if a parameter is not as the latest step left it.
  void step(double gradient_scale, double max_norm, const std::string& objection) EXCLUDES(mutex_);
  double norm() EXCLUDES(mutex_);
  // Sets the sum of the squares of gradients elsewhere; norms include it from now on.
  void add_squares(double squares) EXCLUDES(mutex_);
  // Returns copies of the servers' state. Fetches the state of a whole table at once, and keeps it
  // until the next push. Blocks.
  OptimizerState state(std::size_t position) EXCLUDES(mutex_);
  // Throws kUnsupported, unless `state` is empty or that of a fresh optimizer.
  void adopt_state(std::size_t position, OptimizerState state) EXCLUDES(mutex_);

  void pull() override EXCLUDES(mutex_);
  void begin_task() override { pull(); }
  void end_task() override EXCLUDES(mutex_);

 private:
  // The memory in which one parameter's gradient is born, or to which it is copied. If the program
  // has kept a tensor in it, all gradients move.
  class Memory final : public GradientMemory {
   public:
    Memory(PsStep& reducer, std::size_t index) : reducer_(reducer), index_(index) {}
    at::Tensor lay_out(std::int64_t elements,
                       const std::vector<std::vector<std::int64_t>>& shapes) override;
    void written() override {}

   private:
    PsStep& reducer_;
    const std::size_t index_;
  };
  struct Gradient {
    std::unique_ptr<Memory> memory;  // null: step() copies p.grad to `served`
    std::unique_ptr<GradientBuffer> buffer;
    at::Tensor served = {};  // the memory that the servers read
    int moves = -1;          // moves_ when `served` was laid out; -1: not yet
  };

  void make_gradient(std::size_t index) REQUIRES(mutex_);
  at::Tensor lay_out(std::size_t index) REQUIRES(mutex_);
  void follow_moves() REQUIRES(mutex_);
  std::vector<bool> take_gradients() REQUIRES(mutex_);
  bool strays() const { return options_.push_every > 0; }
  void stray(double scale, double max_norm) REQUIRES(mutex_);
  void push_accrued() REQUIRES(mutex_);
  void fetch() REQUIRES(mutex_);
  Status push(std::span<const std::uint64_t> made_from, double scale, std::vector<bool> used)
      REQUIRES(mutex_);
  void collect_rules() REQUIRES(mutex_);
  void keep_state(std::size_t group, const kernels::UpdateRule& rule) REQUIRES(mutex_);
  double norm_of(const std::vector<bool>& used, double scale) const REQUIRES(mutex_);
  void scale_gradients(const std::vector<bool>& used, double scale) REQUIRES(mutex_);
  void await_answer() REQUIRES(mutex_);
  const MemorySegment& state_array(std::size_t table, std::size_t array) REQUIRES(mutex_);

  const std::shared_ptr<ps::Client> client_;
  const Options options_;
  Mutex mutex_;
  ServedParameters parameters_ GUARDED_BY(mutex_);
  std::vector<kernels::UpdateRule> rules_ GUARDED_BY(mutex_);  // by parameter group
  std::vector<kernels::UpdateRule> kept_ GUARDED_BY(mutex_);   // the rules whose state servers keep
  std::vector<bool> comes_and_goes_ GUARDED_BY(mutex_);  // by group: SGD's momentum began or ended
  // The rules that a push sends, see ps::Push. Empty until collect_rules() fills them.
  std::vector<kernels::UpdateRule> pushed_rules_ GUARDED_BY(mutex_);
  std::vector<std::uint32_t> pushed_rule_slots_ GUARDED_BY(mutex_);
  std::vector<Gradient> gradients_ GUARDED_BY(mutex_);  // by parameter
  int moves_ GUARDED_BY(mutex_) = 0;                    // how often the gradients' memory moved
  bool unanswered_ GUARDED_BY(mutex_) = false;
  double norm_ GUARDED_BY(mutex_) = 0.0;
  double other_squares_ GUARDED_BY(mutex_) = 0.0;
  // Downpour: true for a slot, as Push::used counts, that has a gradient since the latest push;
  // `served` has the sum. Then the number of steps since the latest push and the latest fetch.
  std::vector<bool> accrued_ GUARDED_BY(mutex_);
  int unpushed_ GUARDED_BY(mutex_) = 0;
  int unfetched_ GUARDED_BY(mutex_) = 0;
  // State fetched since the latest push: by table and array; and each slot's number of steps.
  std::vector<std::vector<std::optional<MemorySegment>>> fetched_ GUARDED_BY(mutex_);
  std::optional<MemorySegment> fetched_steps_ GUARDED_BY(mutex_);
};

// Makes the process's PsStep and sets it as the puller. Throws kInvalidArgument if the job has
// no servers, in the coordinator, and if the mode is impossible.
std::shared_ptr<PsStep> make_ps_step(PsStep::Options options);

}  // namespace ciranda
