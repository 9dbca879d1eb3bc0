#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ciranda/torch/collective/collective.h"
#include "ciranda/torch/step/step_types.h"
#include "core/kernels/update_rule.h"
#include "core/plan/step_runs.h"

namespace ciranda {

// A parameter's slot of a bucket. `begin` and `end` count elements from the bucket's start.
struct StepSlot {
  std::string name;
  at::Tensor parameter;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  c10::DimVector sizes = {};
  c10::DimVector strides = {};
};

// The optimizer's step on one bucket, shared by the ranks of a group on this host. This class calls
// these the ranks, and numbers them by their index among themselves. Whichever rank has time takes
// a chunk: it sums the ranks' gradients, updates the state and writes the new parameters into every
// rank's copy. The parameters lie in the arena: each rank has its copy in its own memory, or all
// ranks use one copy in rank 0's. The state lies in rank 0's memory. Each rank keeps its own count
// of the steps that each parameter has seen. Ranks that have joined take no part; the other ranks
// write the new parameters and counts into the memory of those ranks.
//
// Not thread-safe; belongs to a Bucket.
class SharedStep {
 public:
  // `elements`: the bucket's number of elements of `dtype`, counters and padding included. `name`
  // is the same on every rank. Moves the parameters into the arena; obstacle() names one that
  // cannot move. If `share_parameters` is true, the parameters of every rank become rank 0's, in
  // the same memory; the call is then collective and blocks.
  SharedStep(std::shared_ptr<const Communicator> among, std::string name, c10::ScalarType dtype,
             std::int64_t elements, std::vector<StepSlot> slots, bool share_parameters);
  // Returns true if the parameter is dense and nobody else looks at its memory. Others would not
  // see the steps.
  static bool can_move(const at::Tensor& parameter);
  // Returns why a parameter cannot move, as the rest of a sentence.
  static std::string why_immovable(const at::Tensor& parameter);
  // Python keeps an object for a storage that it has seen; that object counts as a user of the
  // storage. `only_kept` returns true if the program does not use the object. Set by the bindings.
  static void set_kept_by_python(bool (*only_kept)(const c10::StorageImpl& storage));

  // Allocates the state that `rule` needs, and drops the state so far. Collective; blocks.
  void prepare(const kernels::UpdateRule& rule);
  // Returns what prevents the next step by `rule`, as the rest of a sentence: a parameter does not
  // lie where it was put, or the rule needs other state than prepare() has allocated.
  std::optional<std::string> obstacle(const kernels::UpdateRule& rule) const;
  bool prepared() const { return prepared_; }
  bool needs_other_state(const kernels::UpdateRule& rule) const;
  // Returns true if a parameter has state, by a step or by adoption. Steps that were made while
  // this rank had joined count, too.
  bool begun() const;

  // Returns the state of a slot under torch.optim's names, as views of the shared memory; with
  // "step" if torch has one. Empty until the parameter has been updated, except for Adagrad, which
  // has state from the beginning, as in torch.
  OptimizerState state(std::size_t slot) const;
  // Copies `state` into the slot's state. The ranks of the host share the arrays, and adopt the
  // same state; the number of steps is this rank's. Throws kInvalidArgument if a shape differs.
  void adopt(std::size_t slot, const OptimizerState& state);

  struct Update {
    kernels::UpdateRule rule;
    std::string words;  // rule_text(rule)
    double gradient_scale = 1.0;
    // This rank's bucket, if it holds the reduced gradients. Null: adds up the ranks' gradients.
    const std::byte* reduced = nullptr;
  };
  using Used = std::function<bool(std::size_t slot, std::span<std::byte* const> arena)>;
  using Work = decltype(Execution::work);
  // Returns what a rank does with a chunk of the bucket, see Execution::work. `used(slot, arena)`
  // returns true if any rank has a gradient for the slot.
  Work work(Update update, Used used);
  // As work(), but adds up the squares of the gradients that the update would see. Afterwards
  // sum_of_squares() returns the sum, the same on every rank, until the next such work.
  Work squares_work(Update update, Used used);
  double sum_of_squares() const;
  // Called after the step, for each slot that was used.
  void count(std::size_t slot);
  // Called after count(), if the ranks of the World in `joined` took no part in the step: gives
  // them this rank's counts.
  void count_for(const std::vector<Rank>& joined);
  // Returns what has happened to a slot since the last call or adopt(): whether steps have written
  // its parameter, and whether it has got its first state.
  struct Changes {
    bool written = false;
    bool fresh = false;
  };
  Changes take_changes(std::size_t slot);

  std::size_t arena_bytes() const { return own_.bytes + (self_ == 0 ? states_.bytes : 0); }

 private:
  // Returns work that calls fn(run, first element, last + 1, arena) for each part of a chunk that
  // has gradients.
  template <typename Fn>
  Work on_runs(Used used, Fn fn);
  std::vector<StepRun> runs(std::span<std::byte* const> arena, const Used& used) const;
  void apply(const Update& update, const StepRun& run, std::int64_t begin, std::int64_t end,
             std::span<std::byte* const> arena) const;
  // Stores into `gradients` where the gradients lie from byte `offset` of the bucket on: every
  // rank's, or the reduced one.
  using Gradients = std::array<const std::byte*, kLocalRanksMax>;
  std::span<const std::byte* const> gradients_at(const Update& update, std::size_t offset,
                                                 std::span<std::byte* const> arena,
                                                 Gradients& gradients) const;
  double squares(const Update& update, std::int64_t begin, std::int64_t end,
                 std::span<std::byte* const> arena) const;
  double& chunk_squares(std::uint64_t begin) const;
  std::size_t squares_offset() const;
  std::size_t parameters_offset() const;
  bool owns_parameters() const { return !share_parameters_ || self_ == 0; }
  std::byte* parameters(std::size_t rank) const;
  std::byte* place(const StepSlot& slot) const;
  bool in_place(const StepSlot& slot) const;
  void allocate_states();
  std::vector<ArenaBuffer> exchange(const ArenaBuffer& mine, const char* what) const;
  void move_in(const StepSlot& slot, bool copy);
  float* steps(std::size_t rank) const;
  std::byte* state_array(std::size_t index) const;

  const std::shared_ptr<const Communicator> among_;
  const std::string name_;
  const std::vector<Rank>& here_;  // the ranks' numbers in the World, ascending
  const std::size_t self_;         // this rank's index in here_
  const c10::ScalarType dtype_;
  const std::size_t element_bytes_;
  const std::vector<StepSlot> slots_;
  const std::size_t array_bytes_;  // bytes of all elements, in whole cache lines
  const bool share_parameters_;
  bool prepared_ = false;
  std::vector<float> seen_;  // by slot: this rank's steps at the latest take_changes()
  std::vector<kernels::StateArray> arrays_;
  bool has_step_ = false;               // torch's state has a "step" for this rule
  std::optional<double> initial_ = {};  // initial value of Adagrad's sums
  ArenaBuffer own_;                     // steps, squares by chunk (rank 0's are used), parameters
  std::vector<ArenaBuffer> memory_;     // own_ of every rank
  ArenaBuffer states_;                  // rank 0's state, array by array
};

// Returns the text by which ranks compare their rules: "Adam lr=0.001 beta1=0.9 ...", without
// numbers that are 0, then `addition`; at most kRuleBytesMax.
std::string rule_text(const kernels::UpdateRule& rule, const char* addition = "");

}  // namespace ciranda
