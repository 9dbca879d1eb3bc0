#pragma once

#include <ATen/core/ivalue.h>
#include <ciranda/torch.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

// Training that goes on when ranks die, come back or join (docs/elastic.md):
//
//   ciranda::init();
//   ...
//   elastic::State state(model, optimizer);
//   for (int epoch = 0; epoch < 10; ++epoch) {
//     elastic::steps(state, {.samples = 60000, .batch = 64, .shuffle = true},
//                    [&](const elastic::Block& block) {
//                      auto batch = data.get_batch(block.indices);
//                      optimizer.zero_grad();
//                      loss(model->forward(batch.data), batch.target).backward();
//                      optimizer.step();
//                    });
//     scheduler.step();
//     double accuracy = elastic::agreed(state, evaluate);
//   }
//
// `ciranda run -np 4 --min-np 2 ./program` starts an elastic job. Without --min-np, under any
// starter, the same program trains as usual, and a lost rank is an error. Errors are those of
// <ciranda/torch.h>.
namespace ciranda::elastic {

namespace detail {

template <typename Value>
c10::IValue saved(const Value& value) {
  if constexpr (std::is_same_v<Value, torch::Tensor>) {
    return value.detach().clone();
  } else if constexpr (std::is_same_v<Value, bool>) {
    return value;
  } else if constexpr (std::is_integral_v<Value>) {
    return static_cast<std::int64_t>(value);
  } else if constexpr (std::is_floating_point_v<Value>) {
    return static_cast<double>(value);
  } else {
    return c10::IValue(value);
  }
}

template <typename Value>
Value loaded(const c10::IValue& value) {
  if constexpr (std::is_same_v<Value, bool>) {
    return value.toBool();
  } else if constexpr (std::is_integral_v<Value>) {
    return static_cast<Value>(value.toInt());
  } else if constexpr (std::is_floating_point_v<Value>) {
    return static_cast<Value>(value.toDouble());
  } else {
    return value.to<Value>();
  }
}

}  // namespace detail

// What a training changes, and how far it is. In an elastic job register whatever training changes:
// a rank that joins gets all of it, and a block that is redone begins with buffers, values and the
// optimizers' options as they were.
//
// Make it after the optimizers, once in a process. Every process registers the same things in the
// same order. They have to outlive the state. Not thread-safe.
class State {
 public:
  // Returns a copy of something that is registered.
  using Save = std::function<c10::IValue()>;
  // Takes such a copy over.
  using Load = std::function<void(const c10::IValue&)>;
  // Gets the number of ranks before and after a change.
  using OnResize = std::function<void(int, int)>;

  template <typename... Things>
  explicit State(Things&... things) : State(Made{}) {
    (add(things), ...);
  }
  // Blocks, in an elastic job, until all ranks are at the end of their programs, and helps those
  // that are not. From then on operations are refused; rank() and size() are those of the end. If
  // another rank still needs this one for a step, the job ends. Does not wait if an exception ends
  // the program. Throws if the launcher is gone.
  ~State() noexcept(false);
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Registers a module, an optimizer (distributed or not), or a variable: a number, a bool, a
  // string, a tensor, or a vector of them.
  template <typename Thing>
  State& add(Thing& thing) {
    if constexpr (torch::detail::is_module_holder<Thing>::value) {
      return add_module(*thing);
    } else if constexpr (std::is_base_of_v<torch::nn::Module, Thing>) {
      return add_module(thing);
    } else if constexpr (std::is_base_of_v<torch::optim::Optimizer, Thing>) {
      return add_optimizer(thing);
    } else if constexpr (std::is_same_v<Thing, torch::Tensor>) {
      return add([&thing] { return detail::saved(thing); },
                 [&thing](const c10::IValue& value) {
                   const torch::NoGradGuard no_grad;
                   thing.copy_(value.toTensor());
                 });
    } else {
      return add([&thing] { return detail::saved(thing); },
                 [&thing](const c10::IValue& value) { thing = detail::loaded<Thing>(value); });
    }
  }
  // Registers something else, such as a scheduler of your own. `save` returns a copy, which `load`
  // gets, on this rank or on another.
  State& add(Save save, Load load);

  // Registers a function for changes of the number of ranks: to change the learning rate, for
  // example. Every rank calls it before its next block, also a rank that joins. It must change only
  // what is registered.
  State& on_resize(OnResize callback);

  // The number of blocks that the training has done.
  std::int64_t step() const;
  // True in a process that has joined, until it is where the others are: what it would print has
  // been printed.
  bool skipping() const;

  class Impl;
  Impl& impl() { return *impl_; }  // for ciranda's own use

 private:
  struct Made {};
  explicit State(Made);
  State& add_module(torch::nn::Module& module);
  State& add_optimizer(torch::optim::Optimizer& optimizer);

  std::unique_ptr<Impl> impl_;
};

// How the samples of a pass over the data are dealt to the ranks.
struct Deal {
  std::size_t samples = 0;  // in the data set
  std::size_t batch = 1;    // of each rank
  bool shuffle = false;     // anew in each pass, by the seed of the state: torch::manual_seed()
  // Leaves out a rest that does not give each rank a whole batch. Without it the last block of a
  // pass has smaller batches, or batches that are one sample larger.
  bool drop_last = false;
};

// One block of the training. All ranks together train on the samples from `begin` to before `end`
// of the pass, in its order.
struct Block {
  std::int64_t number = 0;  // from 0, in all passes
  std::size_t begin = 0;
  std::size_t end = 0;
  std::vector<std::size_t> indices;  // this rank's samples, as BatchDataset::get_batch() takes them

  torch::Tensor index() const;  // the same, for torch::Tensor::index()
};

// Calls `train` for each block of one pass over the data. A block makes one step() of each
// optimizer; collectives of your own come before backward().
//
// If a rank is lost in a block, the exception leaves `train` and is swallowed here. The block comes
// again, with the ranks that are left and samples dealt anew, unless a rank has already made the
// block's step: then it counts on all ranks. Each sample is trained on once in a pass. Each block
// begins with random numbers of torch that depend on the state's seed, the block and the rank.
// Loops and calls of agreed() come in the same order in every process: one that joins skips those
// that the others have ended. Where another rank had made a step before the loss, step() returns an
// undefined tensor, and not the loss of a closure.
//
// On a host that leaves the job the next block ends the process instead, by std::exit(0): objects
// on stacks are not destroyed.
//
// Blocks until all ranks have joined. Throws what `train` throws, and, without an elastic job, the
// loss of a rank.
void steps(State& state, const Deal& deal, const std::function<void(const Block&)>& train);

namespace detail {
c10::IValue agreed(State& state, const std::function<c10::IValue()>& evaluate);
}  // namespace detail

// Returns evaluate(), which all ranks call alike: a number, a bool, a string, a tensor, or a vector
// of them. It may call collectives. If a rank is lost meanwhile, the ranks that are left call it
// again, or take the result of a rank that had one. A process that joins later gets the result
// without the call, so it must be the same on every rank, and small. Not within a block.
template <typename Function>
auto agreed(State& state, Function&& evaluate) {
  using Result = std::decay_t<std::invoke_result_t<Function>>;
  return detail::loaded<Result>(
      detail::agreed(state, [&] { return detail::saved<Result>(evaluate()); }));
}

}  // namespace ciranda::elastic
