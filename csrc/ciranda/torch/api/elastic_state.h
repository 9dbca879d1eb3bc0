#pragma once

#include <ciranda/elastic.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/member/recovery.h"

namespace ciranda::elastic {

// How far the training is, in numbers that are the same on all ranks at the same point.
struct Progress {
  std::uint64_t moment = 0;  // things done so far: blocks, passes, agreements
  std::size_t passes = 0;    // loops over the data that have ended
  std::int64_t blocks = 0;   // blocks that have ended, in all passes
  std::size_t samples = 0;   // of the current pass, in blocks that have ended
  std::uint64_t seed = 0;    // of the order of samples, and of each block's random numbers
  int size = 1;              // the number of ranks with which the program's settings go
  std::vector<c10::IValue> agreements;  // what agreed() has returned
};

// How a rank takes over the state of another.
enum class Takeover : std::uint8_t {
  kWhole,
  // Only what optimizers change: this rank is in a block whose step is made, and its own code is
  // about to do the rest.
  kStep,
};

// The state of a training on this rank. Not thread-safe; methods neither block nor are collective,
// unless they say so.
class State::Impl {
 public:
  Impl();

  void add_module(torch::nn::Module& module) { modules_.push_back(&module); }
  void add_optimizer(torch::optim::Optimizer& optimizer) { optimizers_.push_back(&optimizer); }
  void add_value(Save save, Load load) { values_.emplace_back(std::move(save), std::move(load)); }
  void add_callback(OnResize callback) { callbacks_.push_back(std::move(callback)); }

  const std::vector<torch::optim::Optimizer*>& optimizers() const { return optimizers_; }
  // Throws kInvalidArgument if a DistributedOptimizer of this process is not registered.
  void check_registered() const;
  // Frees the gradients of all parameters.
  void forget_gradients();

  // --- What the program changes between blocks, too: it belongs to a point of the program ---

  // Notes the state at the end of a loop or an agreement, for newcomers that skip the call.
  void end_call() { after_call_ = take_settings(); }
  // The others have ended a call that this rank has not made, or not to its end. `is_last`: it is
  // the last that they have ended.
  void skip_call(bool is_last);
  // This rank is where the others were when it got their state.
  void arrive();
  // Calls the callbacks if the number of ranks is not the one that the settings go with.
  void resize(int size);
  bool skipping() const { return joined_ && at_arrival_.has_value(); }

  // Begins a block. undo_block() puts back what it has changed beside parameters and their state,
  // unless the block counts.
  void begin_block();
  // Makes undo_block() put back parameters and their state, too, as they are at the first call in a
  // block.
  void keep_steps();
  void undo_block();
  void end_block() { before_block_.reset(); }

  // Copies the state of rank plan.source to the ranks that lack it. Collective, blocking. A rank
  // keeps what it has until it has received everything, so that the loss of the source meanwhile
  // tears nothing.
  void transfer(const member::RecoveryPlan& plan, Rank own, Takeover takeover);

  Progress progress;
  bool holds = false;  // the state is that of the job, not what this process began with
  // How many loops and agreements this process has begun.
  std::size_t passes_begun = 0;
  std::size_t agreements_begun = 0;

 private:
  // The optimizers' options and the registered values.
  struct Settings {
    std::vector<std::shared_ptr<const torch::optim::OptimizerOptions>> options;
    std::vector<c10::IValue> values;
  };
  struct BeforeBlock {
    std::int64_t number;
    Settings settings;
    std::vector<torch::Tensor> buffers;
    std::vector<torch::Tensor> parameters;  // empty without keep_steps()
    std::vector<torch::Tensor> optimizers;  // as bytes
  };
  struct Sent;

  Settings take_settings() const;
  void put_settings(const Settings& settings);
  std::vector<torch::optim::OptimizerOptions*> all_options() const;
  std::vector<torch::Tensor> parameters() const;
  std::vector<torch::Tensor> buffers() const;
  c10::IValue packed(const Settings& settings) const;
  Settings unpacked(const c10::IValue& value) const;
  Sent broadcast(Rank source, bool is_source) const;
  std::vector<torch::Tensor> save_optimizers() const;  // as bytes
  void load_optimizers(const std::vector<torch::Tensor>& saved);

  std::vector<torch::nn::Module*> modules_;
  std::vector<torch::optim::Optimizer*> optimizers_;
  std::vector<std::pair<Save, Load>> values_;
  std::vector<OnResize> callbacks_;
  // What a newcomer takes over beside parameters and their state: where its code has skipped the
  // last call, and where it arrives at the others.
  Settings after_call_;
  std::optional<Settings> at_arrival_;
  bool joined_ = false;                      // as a newcomer
  std::optional<BeforeBlock> before_block_;  // while this rank is in a block
};

}  // namespace ciranda::elastic
