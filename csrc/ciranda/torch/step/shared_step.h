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
#include "core/base/revocable_lock.h"
#include "core/kernels/step_journal.h"
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
// In an elastic job a journal is kept in rank 0's memory (kernels/step_journal.h). If ranks die in
// a step, the others can tell whether it was begun, and one of them can complete it. They do so
// after they have met anew, when none of them uses the World of this step any more, and after they
// have revoked the locks under which ranks that they go on without may still write.
//
// Not thread-safe; belongs to a Bucket.
class SharedStep {
 public:
  // `elements`: the bucket's number of elements of `dtype`, counters and padding included. `name`
  // is the same on every rank. Moves the parameters into the arena; obstacle() names one that
  // cannot move. If `share_parameters` is true, the parameters of every rank become rank 0's, in
  // the same memory; the call is then collective and blocks. `journaled`: in an elastic job.
  SharedStep(std::shared_ptr<const Communicator> among, std::string name, c10::ScalarType dtype,
             std::int64_t elements, std::vector<StepSlot> slots, bool share_parameters,
             bool journaled);
  // Returns true if the parameter is dense and nobody else looks at its memory. Others would not
  // see the steps.
  static bool can_move(const at::Tensor& parameter);
  // As can_move(), or others look at it through its storage, which moves along: the parameter lies
  // in the memory of an earlier SharedStep.
  static bool can_move_along(const at::Tensor& parameter);
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
  bool journaled() const { return journaled_; }
  // Says, before work(), that this rank takes part in the next step with its gradients in `memory`.
  void enter(const ArenaBuffer& memory);
  void withdraw();  // takes that back: the ranks have not agreed on the step
  // Maps the gradients of the ranks that have entered the step, as far as this rank can know them.
  // Called when the World has failed, and before it ends.
  void hold_gradients();
  // While it lives, this rank writes to the memory of all, unless others have gone on without it.
  class Writing {
   public:
    Writing(const SharedStep& step, std::uint64_t epoch);
    ~Writing();
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;
    explicit operator bool() const { return may_write_; }

   private:
    RevocableLock* const lock_;  // null if the step is not journaled
    const bool may_write_;
  };
  Writing writing() const;

  // The rest is for ranks that have met anew, and use the World of this step no more. revoke()
  // keeps others from writing, who were in it and may not have ended yet. Blocks for the
  // microseconds in which one of them still writes.
  void revoke() const;
  // After revoke(): returns true if a chunk of the step that this rank has entered was begun: the
  // step counts.
  bool step_begun() const;
  // Returns true if this rank can complete the step: it has all gradients, or nothing is left.
  bool can_complete() const;
  // Does what is left of the step: calls fn(begin, bytes, arena), then updates the chunk.
  using OnChunk =
      std::function<void(std::uint64_t begin, std::uint64_t bytes, std::span<std::byte* const>)>;
  void complete(const Update& update, const Used& used, const OnChunk& fn);
  // Returns the ranks of the World that have not entered the step: they have joined.
  std::vector<Rank> absent() const;
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
  Work journaled_work(Update update, Used used);
  void journaled_chunk(kernels::StepJournal::Work chunk, const Update& update,
                       const std::vector<StepRun>& runs, std::uint64_t begin, std::uint64_t end,
                       std::span<std::byte* const> arena) const;
  std::vector<StepRun> runs(std::span<std::byte* const> arena, const Used& used) const;
  // Calls fn(args) with the arguments of kernels::update() for elements of a run.
  template <typename Fn>
  void apply(const Update& update, const StepRun& run, std::int64_t begin, std::int64_t end,
             std::span<std::byte* const> arena, Fn fn) const;
  // Stores into `gradients` where the gradients lie from byte `offset` of the bucket on: every
  // rank's, or the reduced one.
  using Gradients = std::array<const std::byte*, kLocalRanksMax>;
  std::span<const std::byte* const> gradients_at(const Update& update, std::size_t offset,
                                                 std::span<std::byte* const> arena,
                                                 Gradients& gradients) const;
  double squares(const Update& update, std::int64_t begin, std::int64_t end,
                 std::span<std::byte* const> arena) const;
  double& chunk_squares(std::uint64_t begin) const;
  struct Entry;
  Entry& entry(std::size_t rank) const;
  Entry& own_entry() const;
  bool has_entered(std::size_t rank) const;
  void prepare_journal();
  std::size_t entry_offset() const;
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
  const bool journaled_;
  const std::uint64_t epoch_;  // of the World, if it is journaled
  bool prepared_ = false;
  bool relocated_ = false;   // some parameter, with others that share its storage
  std::vector<float> seen_;  // by slot: this rank's steps at the latest take_changes()
  std::vector<kernels::StateArray> arrays_;
  bool has_step_ = false;               // torch's state has a "step" for this rule
  std::optional<double> initial_ = {};  // initial value of Adagrad's sums
  // Steps, entry if journaled, squares by chunk (rank 0's are used), parameters.
  ArenaBuffer own_;
  std::vector<ArenaBuffer> memory_;  // own_ of every rank
  ArenaBuffer states_;               // rank 0's state, array by array

  // If journaled:
  ArenaBuffer journal_memory_;  // rank 0's
  std::optional<kernels::StepJournal> journal_;
  std::uint64_t step_ = 0;              // that this rank has entered last
  std::vector<ArenaBuffer> gradients_;  // by hold_gradients(); of every rank, empty if not known
};

// Returns the text by which ranks compare their rules: "Adam lr=0.001 beta1=0.9 ...", without
// numbers that are 0, then `addition`; at most kRuleBytesMax.
std::string rule_text(const kernels::UpdateRule& rule, const char* addition = "");

}  // namespace ciranda
