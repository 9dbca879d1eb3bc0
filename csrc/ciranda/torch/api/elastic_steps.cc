// Implements steps() and agreed() of <ciranda/elastic.h>.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <ciranda/elastic.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "ciranda/torch/api/elastic_membership.h"
#include "ciranda/torch/api/elastic_state.h"
#include "ciranda/torch/process/rank_optimizer.h"
#include "ciranda/torch/tensor/error.h"
#include "core/member/dealing.h"

namespace ciranda::elastic {
namespace {

Exception wrong_use(const char* text) {
  return Exception({.code = ErrorCode::kInvalidArgument, .text = text});
}

// Returns the samples in the order of a pass, as Python's loop draws it.
std::vector<std::size_t> order_of_pass(const Deal& deal, std::uint64_t seed) {
  std::vector<std::size_t> order(deal.samples);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (!deal.shuffle) return order;
  const auto count = static_cast<std::int64_t>(deal.samples);
  const at::Tensor drawn = at::randperm(count, at::detail::createCPUGenerator(seed),
                                        at::TensorOptions().dtype(at::kLong));
  const auto* const first = drawn.const_data_ptr<std::int64_t>();
  std::ranges::copy(first, first + count, order.begin());
  return order;
}

// One attempt at a block.
class Attempt final : public StepWatch {
 public:
  Attempt(State::Impl& state, std::size_t end)
      : state_(state), number_(state.progress.blocks), end_(end) {
    for (const RankOptimizer* each : RankOptimizer::all()) {
      if (position_of(*each)) ++watched_;
    }
  }

  // Makes the block. If it counts afterwards, progress.blocks is greater than before.
  void make(const Block& block, const std::function<void(const Block&)>& train) {
    if (in_elastic_job()) {
      state_.begin_block();
      at::manual_seed(member::seed_of_block(state_.progress.seed, state_.progress.passes,
                                            state_.progress.samples, ciranda::rank()));
    }
    if (!completes(block, train) || recovered_) {
      if (!counts()) {
        state_.undo_block();
        state_.end_block();
        return state_.forget_gradients();
      }
    }
    state_.end_block();
    if (!counts()) end();
  }

  torch::Tensor step(const RankOptimizer& optimizer,
                     const std::function<torch::Tensor(const Applied&)>& make) override {
    const std::optional<std::int64_t> position = position_of(optimizer);
    if (!position) return make(nullptr);
    if (!called_.insert(*position).second) {
      throw wrong_use(
          "elastic: the program calls step() of an optimizer twice in one block; make each block "
          "one step, so that it can be redone");
    }
    if (counts()) return {};  // another rank had made the block's steps
    // The gradients of a redone block must be those of its parameters before any of its steps. A
    // block of one optimizer counts with its step, and is not redone after it.
    if (watched_ > 1 && in_elastic_job()) state_.keep_steps();
    try {
      return make([&] { count(); });
    } catch (const Exception& error) {
      if (!is_loss(error)) throw;
      recover(state_, &error.error(), Takeover::kStep);
      if (counts()) return {};
      recovered_ = true;
      throw;
    }
  }

 private:
  // Returns false if a rank was lost, once this one has recovered.
  bool completes(const Block& block, const std::function<void(const Block&)>& train) {
    try {
      train(block);
      return true;
    } catch (const Exception& error) {
      if (!is_loss(error)) throw;
      if (!recovered_) recover(state_, &error.error());
      return false;
    }
  }

  std::optional<std::int64_t> position_of(const RankOptimizer& optimizer) const {
    const auto& all = state_.optimizers();
    const auto found = std::ranges::find(all, &optimizer.optimizer());
    if (found == all.end()) return std::nullopt;
    return found - all.begin();
  }

  // Returns true if the block counts: all its steps are made, here or on another rank.
  bool counts() const { return state_.progress.blocks > number_; }

  void count() {
    if (++applied_ == watched_) end();
  }

  void end() {
    Progress& progress = state_.progress;
    progress.samples = end_;
    ++progress.blocks;
    ++progress.moment;
  }

  State::Impl& state_;
  const std::int64_t number_;
  const std::size_t end_;
  std::size_t watched_ = 0;        // optimizers whose steps are watched
  std::size_t applied_ = 0;        // of their steps
  std::set<std::int64_t> called_;  // optimizers whose step() was called
  bool recovered_ = false;         // the loss that ended the attempt is answered
};

// Prepares the next block or agreement: joins the ranks that the launcher has named meanwhile.
// Returns false if the call has ended on other ranks.
bool heed(State::Impl& state, const std::function<bool()>& has_ended) {
  if (has_ended()) return false;
  state.arrive();
  if (is_called()) recover(state);
  if (has_ended()) return false;
  state.arrive();
  state.resize(ciranda::size());
  return true;
}

// Leaves a call that the others have ended.
void skip(State::Impl& state) {
  const Progress& progress = state.progress;
  state.skip_call(state.passes_begun == progress.passes &&
                  state.agreements_begun == progress.agreements.size());
}

void end_call(State::Impl& state) {
  ++state.progress.moment;
  state.end_call();
}

State::Impl& outside_of_blocks(State& state, const char* what) {
  if (StepWatch::installed() == nullptr) return state.impl();
  throw Exception({.code = ErrorCode::kInvalidArgument,
                   .text = std::string(what) + " is called within a block; call it between loops"});
}

}  // namespace

torch::Tensor Block::index() const {
  return at::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()), at::kLong);
}

void steps(State& program, const Deal& deal, const std::function<void(const Block&)>& train) {
  State::Impl& state = outside_of_blocks(program, "elastic::steps");
  if (deal.batch == 0) throw wrong_use("elastic::steps: batch must be at least 1");
  const std::size_t number = state.passes_begun++;
  join(state);
  Progress& progress = state.progress;
  const auto has_ended = [&] { return number < progress.passes; };
  if (has_ended()) return skip(state);
  const member::Deal dealt{
      .samples = deal.samples, .batch = deal.batch, .drop_last = deal.drop_last};
  const std::vector<std::size_t> order = order_of_pass(deal, progress.seed + number);
  while (heed(state, has_ended)) {
    const std::size_t done = progress.samples;
    const auto size = static_cast<std::size_t>(ciranda::size());
    const std::size_t count = member::samples_of_block(dealt, done, size);
    if (count == 0) {
      progress.samples = 0;
      ++progress.passes;
      return end_call(state);
    }
    leave_if_released();
    const member::Share share = member::share_of_block(count, ciranda::rank(), size);
    const auto first = order.begin() + static_cast<std::ptrdiff_t>(done);
    const Block block{.number = progress.blocks,
                      .begin = done,
                      .end = done + count,
                      .indices = {first + static_cast<std::ptrdiff_t>(share.begin),
                                  first + static_cast<std::ptrdiff_t>(share.end)}};
    Attempt(state, block.end).make(block, train);
  }
  skip(state);
}

c10::IValue detail::agreed(State& program, const std::function<c10::IValue()>& evaluate) {
  State::Impl& state = outside_of_blocks(program, "elastic::agreed");
  const std::size_t number = state.agreements_begun++;
  join(state);
  const auto has_ended = [&] { return number < state.progress.agreements.size(); };
  while (heed(state, has_ended)) {
    try {
      state.progress.agreements.push_back(evaluate());
    } catch (const Exception& error) {
      if (!is_loss(error)) throw;
      recover(state, &error.error());
      continue;
    }
    end_call(state);
    return state.progress.agreements[number].deepcopy();
  }
  skip(state);
  return state.progress.agreements[number].deepcopy();
}

}  // namespace ciranda::elastic
