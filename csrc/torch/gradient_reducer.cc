#include "torch/gradient_reducer.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <utility>

#include "torch/bucket_plan.h"
#include "torch/collectives.h"
#include "torch/default_world.h"
#include "torch/error.h"
#include "torch/heap.h"
#include "torch/optimizer_checks.h"
#include "torch/sparse_gradients.h"
#include "torch/tensor_view.h"

namespace ciranda {

namespace {

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> number = 0;
  return number++;
}

}  // namespace

// The reducers that one graph task of autograd has to do with. When it ends each does its part, in
// the order of their making: blocking operations of two optimizers come in the same order on every
// rank, whichever gradient was there first.
class BackwardEnd {
 public:
  static void add(int graph_task, const std::shared_ptr<GradientReducer>& reducer) {
    static BackwardEnd& ends = *new BackwardEnd;
    const MutexLock lock(ends.mutex_);
    std::erase_if(ends.lists_, [](const auto& entry) { return entry.second.expired(); });
    auto list = ends.lists_[graph_task].lock();
    if (list == nullptr) {
      list = std::make_shared<List>();
      ends.lists_[graph_task] = list;
      // Goes with the graph task, also if that raises.
      torch::autograd::Engine::get_default_engine().queue_callback([list] { run(*list); });
    }
    list->push_back(reducer);
  }

 private:
  using List = std::vector<std::weak_ptr<GradientReducer>>;

  static void run(const List& list) {
    std::map<std::uint64_t, std::shared_ptr<GradientReducer>> alive;
    for (const auto& weak : list) {
      if (auto reducer = weak.lock()) alive.emplace(reducer->number_, std::move(reducer));
    }
    for (const auto& [number, reducer] : alive) reducer->graph_task_ended();
  }

  Mutex mutex_;
  std::map<int, std::weak_ptr<List>> lists_ GUARDED_BY(mutex_);
};

// Only within a host can the step reduce what it updates: with several, gradients are reduced
// first.
GradientReducer::GradientReducer(std::shared_ptr<Engine> engine, ReducerOptions options)
    : engine_(std::move(engine)),
      options_([&] {
        options.reduce_in_backward = options.reduce_in_backward || !engine_->one_host();
        return std::move(options);
      }()),
      members_(members_of(options_.group, "DistributedOptimizer")),
      number_(next_number()),
      passes_(options_.backward_passes_per_step),
      shared_step_(options_.shared_step) {}

GradientReducer::~GradientReducer() {
  for (const Candidate& candidate : candidates_) candidate.owners->remove(this);
}

void GradientReducer::add_parameters(NamedParameters parameters, std::vector<std::size_t> rules) {
  std::vector<std::shared_ptr<GradientOwners>> owners;
  std::size_t first = 0;
  {
    const MutexLock lock(mutex_);
    first = candidates_.size();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      auto& [name, parameter] = parameters[i];
      owners.push_back(GradientOwners::of(parameter));
      candidates_.push_back({.parameter = std::move(parameter),
                             .name = std::move(name),
                             .owners = owners.back(),
                             .rule = shared_step_ ? rules.at(i) : 0});
      ++unplaced_;
    }
    look_for_hooks_ = true;
  }
  for (std::size_t i = 0; i < owners.size(); ++i) owners[i]->add(shared_from_this(), first + i);
  const MutexLock lock(mutex_);
  follow();
  place_unfrozen();
}

// Sees to it that hooks and places are where autograd looks for them: a parameter that was
// converted has another accumulator.
void GradientReducer::follow() {
  bool needed = look_for_hooks_.exchange(false);
  for (const auto& bucket : buckets_) needed = bucket->had_strays() || needed;
  if (!needed) return;
  for (Candidate& candidate : candidates_) {
    if (candidate.foreign) continue;
    const bool known = !candidate.placed || candidate.bucket->knows_accumulator(candidate.slot);
    if (known && candidate.owners->settled()) continue;
    const auto accumulator = candidate.owners->hook(candidate.parameter);
    if (accumulator && candidate.placed) candidate.bucket->follow(candidate.slot, accumulator);
    if (!candidate.owners->settled()) look_for_hooks_ = true;
  }
}

// Every parameter that requires a gradient and has no place yet gets one.
void GradientReducer::place_unfrozen(bool frozen_too) {
  if (unplaced_ == 0) return;
  std::vector<Unplaced> wanted;
  for (std::size_t position = 0; position < candidates_.size(); ++position) {
    const Candidate& candidate = candidates_[position];
    if (candidate.placed) continue;
    if (candidate.parameter.requires_grad() ||
        (frozen_too && candidate.parameter.is_floating_point())) {
      wanted.push_back({position, candidate.parameter, candidate.rule});
    }
  }
  for (const auto& positions : plan_buckets(wanted, options_)) place_bucket(positions);
}

void GradientReducer::place_bucket(const std::vector<std::size_t>& positions) {
  std::vector<Bucket::Member> members;
  for (const std::size_t position : positions) {
    const std::string& name = candidates_[position].name;
    const at::Tensor& parameter = candidates_[position].parameter;
    const std::string what = "DistributedOptimizer: parameter '" + name + "'";
    check_device(parameter.device(), what);
    if (!is_floating(dtype_of(parameter.scalar_type(), what))) {
      throw Exception(
          {.code = ErrorCode::kInvalidArgument, .text = what + " is not of a floating dtype"});
    }
    members.push_back({.name = name,
                       .parameter = parameter,
                       .accumulator = candidates_[position].owners->hook(parameter)});
  }
  Bucket::Contents contents{.reduction = reduction_of(options_, members_->size()),
                            .rule = candidates_[positions.front()].rule};
  contents.reduction.name += "/bucket." + std::to_string(buckets_.size());
  const auto& [first, parameter, accumulator] = members.front();
  if (!parameter.device().is_cpu()) {
    contents.stream =
        default_stream(parameter.device(), "DistributedOptimizer: parameter '" + first + "'");
  }
  contents.members = std::move(members);
  auto bucket = std::make_unique<Bucket>(engine_, options_, std::move(contents));
  if (shared_step_) bucket->share_step();
  buckets_.push_back(std::move(bucket));
  for (std::size_t slot = 0; slot < positions.size(); ++slot) {
    Candidate& candidate = candidates_[positions[slot]];
    candidate.placed = true;
    candidate.bucket = buckets_.back().get();
    candidate.slot = slot;
    candidate.bucket->set_foreign(slot, candidate.foreign);
  }
  unplaced_ -= positions.size();
}

void GradientReducer::set_foreign(std::size_t position, bool foreign) {
  const MutexLock lock(mutex_);
  Candidate& candidate = candidates_.at(position);
  if (candidate.foreign == foreign) return;
  candidate.foreign = foreign;
  foreign ? ++foreign_ : --foreign_;
  if (!foreign) look_for_hooks_ = true;
  if (candidate.placed) candidate.bucket->set_foreign(candidate.slot, foreign);
}

void GradientReducer::set_backward_passes_per_step(int passes) {
  const MutexLock lock(mutex_);
  passes_ = passes;
}

std::size_t GradientReducer::arena_bytes() {
  const MutexLock lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& bucket : buckets_) bytes += bucket->arena_bytes();
  return bytes;
}

std::uint64_t GradientReducer::moved_bytes() {
  const MutexLock lock(mutex_);
  std::uint64_t bytes = 0;
  for (const auto& bucket : buckets_) bytes += bucket->moved_bytes();
  return bytes;
}

std::size_t GradientReducer::bucket_count() {
  const MutexLock lock(mutex_);
  return buckets_.size();
}

// -------------------------------------------------------------------------------------------
// In backward

void GradientReducer::gradient_is_there(std::size_t position) noexcept {
  Linked linked;
  {
    const MutexLock lock(mutex_);
    try {
      const Candidate& candidate = candidates_.at(position);
      // A hook of the user may have stepped with the gradient, and taken it away.
      const at::Tensor& gradient = candidate.parameter.grad();
      if (candidate.foreign || !gradient.defined()) return;
      if (candidate.placed) {
        const auto& reduced = candidate.bucket->slots()[candidate.slot].reduced;
        if (reduced && reduced->same(gradient)) return;
      }
      linked = enter_pass();
      if (!kept_error_ && candidate.placed) take_gradient(candidate);
    } catch (...) {
      kept_error_ = std::current_exception();
    }
  }
  tell(linked);
}

void GradientReducer::pass_reached() noexcept {
  Linked linked;
  {
    const MutexLock lock(mutex_);
    try {
      linked = enter_pass();
    } catch (...) {
      kept_error_ = std::current_exception();
    }
  }
  tell(linked);
}

// Gives those that have to be told of the pass: none but the first time in a graph task.
GradientReducer::Linked GradientReducer::enter_pass() {
  in_pass_ = true;
  return call_back_at_the_end() ? linked_ : Linked();
}

void GradientReducer::tell(const Linked& linked) {
  for (const auto& weak : linked) {
    if (const auto other = weak.lock()) other->pass_reached();
  }
}

void GradientReducer::link(const std::shared_ptr<GradientReducer>& other) {
  const MutexLock lock(mutex_);
  std::erase_if(linked_, [&](const auto& known) {
    return known.expired() || (!known.owner_before(other) && !other.owner_before(known));
  });
  linked_.push_back(other);
}

void GradientReducer::take_gradient(const Candidate& candidate) {
  Bucket& bucket = *candidate.bucket;
  BucketSlot& slot = bucket.slots()[candidate.slot];
  if (options_.op != ReduceOp::kAverage && slot.reduced &&
      slot.reduced->same_object(candidate.parameter.grad())) {
    // To average once more is exact: every rank holds the same average. To sum is not. No harm if
    // nobody looks: the generator's pass of a GAN adds to the discriminator's gradients.
    gradients_spoiled_ = true;
    throw Exception({.code = ErrorCode::kInvalidArgument,
                     .text = "the gradient of '" + candidate.name +
                             "' was computed again after gradients had been summed over the ranks; "
                             "set backward_passes_per_step to the number of backward passes, or "
                             "call the optimizer's zero_grad() between them"});
  }
  if (bucket.submitted()) {
    throw Exception({.code = ErrorCode::kInvalidArgument,
                     .text = "the gradient of '" + candidate.name +
                             "' was computed again while it was being reduced; after a backward "
                             "pass that raised call the optimizer's zero_grad(), and give "
                             "checkpointed segments that share a parameter use_reentrant=False"});
  }
  slot.reduced.reset();
  if (passes_done_ + 1 < passes_) return;  // adds up in p.grad
  bucket.take_gradient(candidate.slot);
  if (bucket.complete() && options_.reduce_in_backward) bucket.submit();
}

// A graph task that raises does not call back: each one that runs a hook is told to. False if it
// has been told already.
bool GradientReducer::call_back_at_the_end() {
  const int current = torch::autograd::get_current_graph_task_id();
  if (current == graph_task_) return false;
  BackwardEnd::add(current, shared_from_this());
  graph_task_ = current;
  return true;
}

void GradientReducer::graph_task_ended() noexcept {
  const MutexLock lock(mutex_);
  try {
    graph_task_ = -1;
    // A reentrant checkpoint runs its segment's backward pass within a node of the user's, and more
    // segments may follow: the pass ends with the outermost, with the last gradient, or in step().
    const bool nested = static_cast<bool>(torch::autograd::get_current_node());
    const bool complete = std::all_of(buckets_.begin(), buckets_.end(),
                                      [](const auto& bucket) { return bucket->complete(); });
    if (nested && !complete) return;
    if (!std::exchange(in_pass_, false) || kept_error_) return;
    if (++passes_done_ >= passes_ && options_.reduce_in_backward) reduce_now();
  } catch (...) {
    kept_error_ = std::current_exception();
  }
}

// -------------------------------------------------------------------------------------------
// A step

void GradientReducer::synchronize() {
  synchronize_foreign();
  synchronize_own();
}

void GradientReducer::synchronize_own() {
  const MutexLock lock(mutex_);
  throw_kept_error();
  follow();
  place_unfrozen();
  reduce_if_any_rank(gradients_now());
}

// Gradients that other optimizers reduce are this one's too.
void GradientReducer::synchronize_foreign() {
  std::map<std::uint64_t, std::shared_ptr<GradientReducer>> owners;
  {
    const MutexLock lock(mutex_);
    if (foreign_ == 0) return;
    for (const Candidate& candidate : candidates_) {
      if (!candidate.foreign) continue;
      auto owner = candidate.owners->owner();
      if (owner && owner.get() != this) owners.emplace(owner->number_, std::move(owner));
    }
  }
  for (const auto& [number, owner] : owners) owner->synchronize_own();
}

// The largest `mine` of the ranks, from 0 to kPlace. By a sum, to which ranks that have joined add
// zeros. Collective, blocking.
int GradientReducer::most_of_ranks(int mine, const char* what) {
  constexpr auto kNumbers = static_cast<std::int64_t>(Gradients::kPlace) + 1;
  const at::Tensor ranks_with = at::zeros({kNumbers}, at::TensorOptions(c10::ScalarType::Int));
  auto* const counts = ranks_with.mutable_data_ptr<std::int32_t>();
  counts[mine] = 1;
  allreduce(ranks_with, ranks_with,
            {.name = options_.name + "/" + what, .op = ReduceOp::kSum, .group = options_.group});
  std::int64_t most = kNumbers - 1;
  while (most > 0 && counts[most] == 0) --most;
  return static_cast<int>(most);
}

// If there is anything to reduce on any rank. Collective, blocking.
void GradientReducer::reduce_if_any_rank(Gradients mine) {
  const auto most = static_cast<Gradients>(most_of_ranks(static_cast<int>(mine), "fresh"));
  if (most == Gradients::kReduced) return;
  if (most == Gradients::kPlace) place_unfrozen(/*frozen_too=*/true);
  reduce_now();
}

// Averages that were edited may differ between ranks, and are averaged again, which is exact where
// they do not. Sums that were edited are taken for what they were.
bool GradientReducer::is_reduced(const BucketSlot& slot) const {
  const at::Tensor& gradient = slot.parameter.grad();
  if (!slot.reduced) return false;
  return options_.op == ReduceOp::kAverage ? slot.reduced->same(gradient)
                                           : slot.reduced->same_object(gradient);
}

GradientReducer::Gradients GradientReducer::gradients_now() {
  bool any_reduced = false;
  bool any_edited = false;
  bool any_new = false;
  for (const auto& bucket : buckets_) {
    for (const BucketSlot& slot : bucket->slots()) {
      if (slot.foreign) continue;
      const at::Tensor& gradient = slot.parameter.grad();
      if (is_reduced(slot)) {
        any_reduced = any_reduced || gradient.defined();
      } else if (slot.reduced && slot.reduced->same_object(gradient)) {
        any_edited = true;
      } else if (slot.reduced || gradient.defined()) {
        if (slot.reduced && gradient.defined() && options_.op != ReduceOp::kAverage) {
          throw Exception(
              {.code = ErrorCode::kInvalidArgument,
               .text = "the gradient of '" + slot.name +
                       "' was replaced after gradients had been summed over the ranks, and may be "
                       "this rank's or everybody's; call the optimizer's zero_grad() before it is "
                       "computed, or edit it in place"});
        }
        any_new = true;
      }
    }
  }
  // An optimizer steps with any gradient there is.
  const auto frozen_with_gradient = [](const Candidate& candidate) {
    return !candidate.placed && !candidate.foreign && candidate.parameter.grad().defined();
  };
  if (unplaced_ > 0 && std::any_of(candidates_.begin(), candidates_.end(), frozen_with_gradient)) {
    return Gradients::kPlace;
  }
  if (!any_edited && !any_new) return Gradients::kReduced;
  const bool can_add_up =
      engine_->one_host() && shared_step_ && (options_.op == ReduceOp::kAverage || !any_reduced);
  const bool may_add_up = !options_.reduce_in_backward || !any_new;  // else p.grad is promised
  return can_add_up && may_add_up ? Gradients::kAddUp : Gradients::kReduce;
}

void GradientReducer::finish_step() {
  const MutexLock lock(mutex_);
  in_pass_ = false;
  passes_done_ = 0;
}

void GradientReducer::settle() {
  std::vector<std::shared_ptr<GradientOwners>> foreign;
  {
    const MutexLock lock(mutex_);
    if (foreign_ > 0) {
      for (const Candidate& candidate : candidates_) {
        if (candidate.foreign) foreign.push_back(candidate.owners);
      }
    }
  }
  for (const auto& owners : foreign) owners->forget();
  const MutexLock lock(mutex_);
  if (std::exchange(gradients_spoiled_, false) && kept_error_) {
    kept_error_ = nullptr;
    await_in_flight();
    start_step();
  }
  throw_kept_error();
  follow();
  place_unfrozen();
  // Any gradient taken, not any bucket submitted: what a pass has begun is the same on all ranks,
  // which buckets it has completed is not.
  const bool begun = std::any_of(buckets_.begin(), buckets_.end(),
                                 [](const auto& bucket) { return bucket->begun(); });
  if (begun && options_.reduce_in_backward) reduce_now();
  start_step();
  for (const auto& bucket : buckets_) bucket->forget_gradients();
}

void GradientReducer::forget(std::size_t position) {
  const MutexLock lock(mutex_);
  const Candidate& candidate = candidates_.at(position);
  if (candidate.placed) candidate.bucket->slots()[candidate.slot].reduced.reset();
}

void GradientReducer::set_rule(std::size_t number, const kernels::UpdateRule& rule) {
  const MutexLock lock(mutex_);
  if (rules_.size() <= number) rules_.resize(number + 1);
  rules_[number] = {.rule = rule,
                    .words = rule_text(rule),
                    .words_adding_up = rule_text(rule, " of gradients that are not reduced")};
}

GradientReducer::StepOutcome GradientReducer::step(double gradient_scale, bool reduce,
                                                   double max_norm, const std::string& objection) {
  if (reduce) synchronize_foreign();
  const MutexLock lock(mutex_);
  throw_kept_error();
  follow();
  place_unfrozen();
  try {
    for (bool again = false;; again = true) {
      for (const auto& bucket : buckets_) {
        bucket->host_step()->prepare(rules_.at(bucket->rule()).rule);
      }
      const Gradients gradients = reduce ? gradients_now() : Gradients::kReduced;
      const std::string reason = objection.empty() ? objection_now() : objection;
      const bool object = gradients >= Gradients::kReduce || !reason.empty();
      try {
        if (try_step(gradient_scale, gradients, max_norm, object)) break;
      } catch (const Exception& problem) {
        if (problem.error().code != ErrorCode::kMismatch || again) throw;
        await_in_flight();
        start_step();
        if (most_of_ranks(object || gradients != Gradients::kReduced, "objects") == 0) throw;
      }
      // A rank objects, and so all have come here: they did not agree, or all object.
      StepOutcome outcome{.why_not_shared =
                              obstacle_of_a_rank(reason, options_.name + "/why", options_.group)};
      if (!outcome.why_not_shared.empty() && options_.share_parameters) {
        throw Exception({.code = ErrorCode::kInvalidArgument,
                         .text = "DistributedOptimizer: share_parameters=True needs a shared step, "
                                 "which is not possible any more: " +
                                 outcome.why_not_shared});
      }
      reduce_if_any_rank(gradients);
      if (!outcome.why_not_shared.empty()) return outcome;
    }
  } catch (...) {
    await_in_flight();
    start_step();
    throw;
  }
  StepOutcome outcome;
  adopts_ = false;
  for (std::size_t position = 0; position < candidates_.size(); ++position) {
    Candidate& candidate = candidates_[position];
    if (!candidate.placed) {
      adopts_ = adopts_ || candidate.state;
      continue;
    }
    const bool adopted = std::exchange(candidate.state, std::nullopt).has_value();
    bool first = false;
    if (candidate.bucket->dense_anywhere(candidate.slot)) {
      first = candidate.bucket->host_step()->count(candidate.slot);
      mark_written(candidate.parameter);
    }
    if (first || adopted) outcome.fresh.push_back(position);
  }
  start_step();
  return outcome;
}

// False where all ranks object: nothing was done. A mismatch throws.
bool GradientReducer::try_step(double gradient_scale, Gradients gradients, double max_norm,
                               bool object) {
  const bool add_up = gradients == Gradients::kAddUp;
  double scale = gradient_scale;
  if (add_up && options_.op == ReduceOp::kAverage) scale /= static_cast<double>(members_->size());
  if (!object) {
    if (adopts_) {
      for (Candidate& candidate : candidates_) {
        if (!candidate.placed || !candidate.state) continue;
        candidate.bucket->host_step()->adopt(candidate.slot, *candidate.state);
      }
    }
    for (const auto& bucket : buckets_) bucket->take_gradients();
  }
  const auto run = [&](void (Bucket::*submit)(const HostStep::Step&), bool squares)
                       REQUIRES(mutex_) {
                         std::vector<Handle> handles;
                         for (const auto& bucket : buckets_) {
                           const auto& [rule, words, words_adding_up] = rules_.at(bucket->rule());
                           if (object) {
                             bucket->submit_objection(squares);
                           } else {
                             (*bucket.*submit)({.rule = rule,
                                                .words = add_up ? words_adding_up : words,
                                                .gradient_scale = scale,
                                                .reduced = !add_up});
                           }
                           bucket->append_handles(handles);
                         }
                         check(engine_->wait(handles));
                       };
  if (max_norm > 0.0) {
    run(&Bucket::submit_squares, /*squares=*/true);
    if (object) {
      start_step();
      return false;
    }
    double squares = 0.0;
    for (const auto& bucket : buckets_) {
      squares += bucket->host_step()->sum_of_squares();
      bucket->retire();
    }
    norm_ = std::sqrt(squares);
    // As torch's clip_grad_norm_; a norm that is NaN makes every gradient so.
    const double coefficient = max_norm / (norm_ + 1e-6);
    scale *= coefficient > 1.0 ? 1.0 : coefficient;
  }
  run(&Bucket::submit_step, /*squares=*/false);
  if (object) start_step();
  return !object;
}

// What stands against a shared step now, as the rest of a sentence.
std::string GradientReducer::objection_now() {
  if (foreign_ > 0) {
    const auto it = std::find_if(candidates_.begin(), candidates_.end(),
                                 [](const Candidate& candidate) { return candidate.foreign; });
    if (it != candidates_.end()) return "another optimizer has parameter '" + it->name + "' too";
  }
  for (const auto& bucket : buckets_) {
    const auto why = bucket->host_step()->obstacle(rules_.at(bucket->rule()).rule);
    if (why) return *why;
  }
  return "";
}

double GradientReducer::norm() {
  const MutexLock lock(mutex_);
  return norm_;
}

HostStep::State GradientReducer::state(std::size_t position, bool copies) {
  const MutexLock lock(mutex_);
  const Candidate& candidate = candidates_.at(position);
  HostStep::State state;
  if (candidate.state) {
    state = *candidate.state;
  } else if (candidate.placed && candidate.bucket->host_step()) {
    state = candidate.bucket->host_step()->state(candidate.slot);
  }
  if (copies) {
    for (auto& [name, value] : state) value = value.clone();
  }
  return state;
}

void GradientReducer::adopt_state(std::size_t position, HostStep::State state) {
  const MutexLock lock(mutex_);
  Candidate& candidate = candidates_.at(position);
  if (candidate.placed && candidate.bucket->host_step()->prepared()) {
    candidate.bucket->host_step()->adopt(candidate.slot, state);
  } else {
    candidate.state = std::move(state);
    adopts_ = true;
  }
}

void GradientReducer::end_shared_step() {
  const MutexLock lock(mutex_);
  shared_step_ = false;
  for (const auto& bucket : buckets_) bucket->end_shared_step();
  for (Candidate& candidate : candidates_) candidate.state.reset();
}

// Leaves the reducer ready for a new step, also when it throws.
void GradientReducer::reduce_now() {
  try {
    place_unfrozen();
    std::vector<Handle> handles;
    for (const auto& bucket : buckets_) {
      if (bucket->foreign()) continue;
      if (!bucket->submitted()) {
        add_up_once(*bucket);
        bucket->submit();
      }
      bucket->append_handles(handles);
    }
    check(engine_->wait(handles));
    for (const auto& bucket : buckets_) {
      if (!bucket->foreign()) bucket->publish();
    }
    reduce_sparse(buckets_, options_, members_->size());
    for (const auto& bucket : buckets_) {
      if (!bucket->foreign()) bucket->note_reduced();
    }
  } catch (...) {
    await_in_flight();
    start_step();
    throw;
  }
  start_step();
}

// Sums that are everybody's already come to what they were when everybody adds his part of them.
void GradientReducer::add_up_once(Bucket& bucket) {
  std::vector<std::size_t> summed;
  if (options_.op != ReduceOp::kAverage) {
    for (std::size_t i = 0; i < bucket.slots().size(); ++i) {
      const BucketSlot& slot = bucket.slots()[i];
      if (!slot.foreign && slot.parameter.grad().defined() && is_reduced(slot)) summed.push_back(i);
    }
  }
  bucket.take_missing();
  for (const std::size_t i : summed) {
    if (!bucket.slots()[i].by_rows)
      bucket.slots()[i].memory.div_(static_cast<double>(members_->size()));
  }
}

void GradientReducer::start_step() {
  for (const auto& bucket : buckets_) bucket->reset();
  in_pass_ = false;
  passes_done_ = 0;
}

// Memory must not change while other ranks read it.
void GradientReducer::await_in_flight() {
  std::vector<Handle> handles;
  for (const auto& bucket : buckets_) bucket->append_handles(handles);
  for (const Handle& handle : handles) (void)engine_->wait(handle);
}

void GradientReducer::throw_kept_error() {
  if (!kept_error_) return;
  await_in_flight();
  start_step();
  gradients_spoiled_ = false;
  std::rethrow_exception(std::exchange(kept_error_, nullptr));
}

// -------------------------------------------------------------------------------------------

std::shared_ptr<GradientReducer> make_gradient_reducer(ReducerOptions options) {
  const auto world = default_world();
  if (options.wire_dtype && world->engine()->operations().cpu != BackendId::kNative) {
    throw Exception({.code = ErrorCode::kUnsupported,
                     .text =
                         "DistributedOptimizer: compression happens in ciranda's own ring, and "
                         "CIRANDA_CPU_OPERATIONS chose another backend; leave out one of them"});
  }
  if (!options.wire_dtype) options.wire_dtype = world->config().wire_dtype;
  if (world->config().keep_heap) keep_heap_between_steps();
  return std::make_shared<GradientReducer>(world->engine(), std::move(options));
}

}  // namespace ciranda
