#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ciranda/torch/gradient/gradient_buffer.h"
#include "ciranda/torch/process/servers.h"
#include "ciranda/torch/servers/served_parameters.h"
#include "ciranda/torch/step/reducer.h"
#include "core/base/mutex.h"

namespace ciranda {

// Pushes an optimizer's gradients to the parameter servers, which make its step: a shared step
// whose state the servers hold. Nothing is reduced here: p.grad stays this worker's.
//
// A gradient is born in the memory that the servers read, where it can be (see GradientPlace), and
// is copied there by step() otherwise. As a Reducer it is collective in step() alone, and there as
// far as the mode says.
class PsReducer final : public Reducer, public Puller {
 public:
  struct Options {
    ps::Mode mode;
    // step() returns before the servers have answered, and waits for their answer to the step
    // before instead.
    bool ahead = false;
    bool force = false;  // see check_momentum()
    // Downpour: gradients of so many steps are pushed as one, and the newest parameters are fetched
    // after so many; between, this worker's parameters make its own steps of plain SGD. 0: not.
    int push_every = 0;
    int fetch_every = 0;
  };
  PsReducer(std::shared_ptr<ps::Client> client, Options options);

  void add_parameters(NamedParameters parameters, std::vector<std::size_t> rules) override
      EXCLUDES(mutex_);
  void set_rule(std::size_t number, const kernels::UpdateRule& rule) override EXCLUDES(mutex_);
  // kInvalidArgument for an objection, or where a parameter is not what the latest step has left.
  StepOutcome step(double gradient_scale, bool reduce, double max_norm,
                   const std::string& objection) override EXCLUDES(mutex_);
  double norm() override EXCLUDES(mutex_);
  // The next step's norm is also of gradients elsewhere, whose squares these are.
  void add_squares(double squares) EXCLUDES(mutex_);
  // Copies of what the servers hold; those of one table are fetched together.
  OptimizerState state(std::size_t position, bool copies) override EXCLUDES(mutex_);
  // kUnsupported, but for no state.
  void adopt_state(std::size_t position, OptimizerState state) override EXCLUDES(mutex_);

  void pull() override EXCLUDES(mutex_);
  void begin_task() override { pull(); }
  void end_task() override EXCLUDES(mutex_);

  void set_backward_passes_per_step(int) override {}
  void synchronize() override {}
  void finish_step() override {}
  void discard_step() override {}
  void confirm_sharing() override {}
  void end_shared_step() override {}

 private:
  // Where the gradient of one parameter is born, or is copied to. Where the program has kept the
  // tensor in it, all gradients move.
  class Memory final : public GradientMemory {
   public:
    Memory(PsReducer& reducer, std::size_t index) : reducer_(reducer), index_(index) {}
    at::Tensor lay_out(std::int64_t elements,
                       const std::vector<std::vector<std::int64_t>>& shapes) override;
    void written() override {}

   private:
    PsReducer& reducer_;
    const std::size_t index_;
  };
  struct Gradient {
    std::unique_ptr<Memory> memory;  // null: copied as torch copies
    std::unique_ptr<GradientBuffer> buffer;
    at::Tensor served = {};  // where the servers read it
    int moves = -1;          // that were made when it was laid out there; none before
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
  std::vector<kernels::UpdateRule> rules_ GUARDED_BY(mutex_);  // by group
  std::vector<kernels::UpdateRule> kept_ GUARDED_BY(mutex_);   // with all state that there is
  std::vector<bool> comes_and_goes_ GUARDED_BY(mutex_);        // by group: SGD's momentum has
  // What a push sends, see ps::Push; empty: collect_rules() has to fill them.
  std::vector<kernels::UpdateRule> pushed_rules_ GUARDED_BY(mutex_);
  std::vector<std::uint32_t> pushed_rule_slots_ GUARDED_BY(mutex_);
  std::vector<Gradient> gradients_ GUARDED_BY(mutex_);  // by parameter
  int moves_ GUARDED_BY(mutex_) = 0;                    // of the gradients' memory
  bool unanswered_ GUARDED_BY(mutex_) = false;
  double norm_ GUARDED_BY(mutex_) = 0.0;
  double other_squares_ GUARDED_BY(mutex_) = 0.0;
  // Downpour: the slots, as Push::used counts, whose gradients of steps since the latest push lie
  // in `served`; and steps since the latest push, and fetch.
  std::vector<bool> accrued_ GUARDED_BY(mutex_);
  int unpushed_ GUARDED_BY(mutex_) = 0;
  int unfetched_ GUARDED_BY(mutex_) = 0;
  // What was fetched since the latest step: by table and array, and the numbers of steps.
  std::vector<std::vector<std::optional<MemorySegment>>> fetched_ GUARDED_BY(mutex_);
  std::optional<MemorySegment> fetched_steps_ GUARDED_BY(mutex_);
};

// Of this process. kInvalidArgument where the job has no servers, or for what a mode cannot be.
std::shared_ptr<PsReducer> make_ps_reducer(PsReducer::Options options);

}  // namespace ciranda
