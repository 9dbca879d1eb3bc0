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
#include "ciranda/torch/step/optimizer_state.h"
#include "core/kernels/update_rule.h"
#include "core/plan/step_runs.h"

namespace ciranda {

// A parameter's part of a bucket, in elements from the bucket's start.
struct StepSlot {
  std::string name;
  at::Tensor parameter;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  c10::DimVector sizes = {};
  c10::DimVector strides = {};
};

// The optimizer's step on one bucket, shared out over the ranks of a group on this host, which are
// called ranks here and numbered by their index among them: whichever rank has time takes a chunk,
// sums the ranks' gradients of it, updates the state and writes the new parameters into every
// rank's copy. Parameters lie in the arena, each rank's own or one copy for all in the memory of
// rank 0, where the state lies too; how many steps each parameter has seen is with every rank.
// Ranks that have joined take no part, and get the new parameters and counts from the others.
//
// Not thread-safe; belongs to a Bucket.
class SharedStep {
 public:
  // `elements` of `dtype` in the bucket, counters and padding included. `name` is the same on every
  // rank. Moves the parameters into the arena, where they can move: obstacle() says if one cannot.
  // With `share_parameters` they become those of rank 0, on every rank the same memory: collective
  // and blocking.
  SharedStep(std::shared_ptr<const Communicator> among, std::string name, c10::ScalarType dtype,
             std::int64_t elements, std::vector<StepSlot> slots, bool share_parameters);
  // Whether a parameter is dense and nobody else looks at its memory, who would not see the steps.
  static bool can_move(const at::Tensor& parameter);
  // Why it cannot, as the rest of a sentence.
  static std::string why_immovable(const at::Tensor& parameter);
  // Python keeps an object for a storage that it has seen, and counts as its user. Tells that from
  // a user of the program; set by the bindings.
  static void set_kept_by_python(bool (*only_kept)(const c10::StorageImpl& storage));

  // Makes room for the state that `rule` needs; what was there is gone. Collective and blocking.
  void prepare(const kernels::UpdateRule& rule);
  // What stands against the next step by `rule`, as the rest of a sentence: a parameter does not
  // lie where it was put, or the rule wants other state than the first time.
  std::optional<std::string> obstacle(const kernels::UpdateRule& rule) const;
  bool prepared() const { return prepared_; }
  bool needs_other_state(const kernels::UpdateRule& rule) const;
  // A parameter has state, by a step or an adoption, if only of ranks that have not joined.
  bool begun() const;

  // State of a slot as torch.optim names it, views of the shared memory; "step" too where torch has
  // it. Empty until the parameter has been updated, but for Adagrad, which torch gives its state at
  // once.
  OptimizerState state(std::size_t slot) const;
  // The state from here on, copied. The arrays are those of all ranks of the host, which adopt the
  // same state; the number of steps is this rank's.
  void adopt(std::size_t slot, const OptimizerState& state);

  // What is done with a chunk of the bucket, see Execution::work. `used(slot, arena)`: whether any
  // rank has a gradient for it.
  struct Update {
    kernels::UpdateRule rule;
    std::string words;  // rule_text(rule)
    double gradient_scale = 1.0;
    // This rank's bucket, where it holds the reduced gradients; null: the ranks' are added up.
    const std::byte* reduced = nullptr;
  };
  using Used = std::function<bool(std::size_t slot, std::span<std::byte* const> arena)>;
  using Work = decltype(Execution::work);
  Work work(Update update, Used used);
  // Instead of an update: the squares of the gradients that the update would see, added up. Once
  // that is done, sum_of_squares() gives it, the same on every rank until the next one.
  Work squares_work(Update update, Used used);
  double sum_of_squares() const;
  // The step is done for a slot that was used.
  void count(std::size_t slot);
  // All of it is done, without the ranks of the World in `joined`: their counts become this rank's.
  void count_for(const std::vector<Rank>& joined);
  // Of a slot, since the last call or adopt(): steps have written its parameter; its state is new.
  struct Changes {
    bool written = false;
    bool fresh = false;
  };
  Changes take_changes(std::size_t slot);

  std::size_t arena_bytes() const { return own_.bytes + (self_ == 0 ? states_.bytes : 0); }

 private:
  // Calls fn(run, first element, last + 1, arena) for the parts of a chunk that have gradients.
  template <typename Fn>
  Work on_runs(Used used, Fn fn);
  std::vector<StepRun> runs(std::span<std::byte* const> arena, const Used& used) const;
  void apply(const Update& update, const StepRun& run, std::int64_t begin, std::int64_t end,
             std::span<std::byte* const> arena) const;
  // The gradients from byte `offset` of the bucket on, into `gradients`: every rank's, or the
  // reduced one.
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
  const std::vector<Rank>& here_;  // of the World, ascending
  const std::size_t self_;         // this rank's index among them
  const c10::ScalarType dtype_;
  const std::size_t element_bytes_;
  const std::vector<StepSlot> slots_;
  const std::size_t array_bytes_;  // of all elements
  const bool share_parameters_;
  bool prepared_ = false;
  std::vector<float> seen_;  // of this rank's steps, by take_changes()
  std::vector<kernels::StateArray> arrays_;
  bool has_step_ = false;               // torch keeps one for this rule
  std::optional<double> initial_ = {};  // what Adagrad's sums begin with
  ArenaBuffer own_;                     // steps, squares by chunk (rank 0's are used), parameters
  std::vector<ArenaBuffer> memory_;     // the same of every rank
  ArenaBuffer states_;                  // array by array; rank 0's
};

// "Adam lr=0.001 weight_decay=0 …": what ranks compare.
std::string rule_text(const kernels::UpdateRule& rule, const char* addition = "");

}  // namespace ciranda
