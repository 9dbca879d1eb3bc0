#include "ciranda/torch/gradient/gradient_reducer.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <typeinfo>
#include <utility>

#include "ciranda/torch/process/default_world.h"
#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/heap.h"

namespace ciranda {

namespace {

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> number = 0;
  return number++;
}

bool concerns_gradients_alone(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const SpoiledGradients&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

// The reducers that take part in one graph task of autograd. Each does its part at the end of the
// graph task, in order of construction. Blocking operations of two optimizers therefore come in the
// same order on every rank, whichever gradient was there first.
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
      // The callback is destroyed with the graph task, also if that raises. It queues a second one,
      // to run behind callbacks that others have queued since and that write gradients, as
      // DistributedDataParallel does.
      queue([list] { queue([list] { run(*list); }); });
    }
    list->push_back(reducer);
  }

 private:
  using List = std::vector<std::weak_ptr<GradientReducer>>;

  static void queue(std::function<void()> callback) {
    torch::autograd::Engine::get_default_engine().queue_callback(std::move(callback));
  }

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

// The step itself can reduce gradients only within a host. Gradients of several hosts are reduced
// first.
GradientReducer::GradientReducer(std::shared_ptr<Engine> engine, ReducerOptions options)
    : engine_(std::move(engine)),
      options_([&] {
        options.reduce_in_backward = options.reduce_in_backward || !engine_->one_host();
        return std::move(options);
      }()),
      among_(default_communicator(options_.group, "DistributedOptimizer")),
      number_(next_number()),
      passes_(options_.backward_passes_per_step),
      parameters_(among_, options_),
      sync_(engine_, among_, options_, parameters_, passes_),
      shared_step_(engine_, among_, options_, parameters_, sync_) {}

GradientReducer::~GradientReducer() {
  for (const TrackedParameter& tracked : parameters_.all()) tracked.owners->remove(this);
}

void GradientReducer::add_parameters(NamedParameters parameters, std::vector<std::size_t> rules) {
  std::vector<std::shared_ptr<GradientOwners>> owners;
  std::size_t first = 0;
  {
    const MutexLock lock(mutex_);
    first = parameters_.size();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      auto& [name, parameter] = parameters[i];
      owners.push_back(GradientOwners::of(parameter));
      parameters_.add({.parameter = std::move(parameter),
                       .name = std::move(name),
                       .owners = owners.back(),
                       .rule = parameters_.shares_step() ? rules.at(i) : 0});
    }
    look_for_hooks_ = true;
  }
  for (std::size_t i = 0; i < owners.size(); ++i) owners[i]->add(shared_from_this(), first + i);
  const MutexLock lock(mutex_);
  place_gradients();
  // This is collective, and no rank has joined yet.
  if (parameters_.shares_step()) shared_step_.prepare_buckets();
}

// Puts hooks and places where autograd looks for them, and gives every unfrozen parameter a bucket.
void GradientReducer::place_gradients() {
  if (parameters_.refresh_hooks(look_for_hooks_.exchange(false))) look_for_hooks_ = true;
  parameters_.bucket_unfrozen();
}

void GradientReducer::set_foreign(std::size_t position, bool foreign) {
  const MutexLock lock(mutex_);
  if (parameters_.set_foreign(position, foreign) && !foreign) look_for_hooks_ = true;
}

void GradientReducer::forget(std::size_t position) {
  const MutexLock lock(mutex_);
  const TrackedParameter& tracked = parameters_.at(position);
  if (tracked.bucketed) tracked.bucket->slots()[tracked.slot].reduced.reset();
}

std::size_t GradientReducer::arena_bytes() {
  const MutexLock lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& bucket : parameters_.buckets()) bytes += bucket->arena_bytes();
  return bytes;
}

std::uint64_t GradientReducer::moved_bytes() {
  const MutexLock lock(mutex_);
  std::uint64_t bytes = 0;
  for (const auto& bucket : parameters_.buckets()) bytes += bucket->gradients().moved_bytes();
  return bytes;
}

std::size_t GradientReducer::bucket_count() {
  const MutexLock lock(mutex_);
  return parameters_.buckets().size();
}

// -------------------------------------------------------------------------------------------
// In backward

void GradientReducer::on_gradient_ready(std::size_t position) noexcept {
  Linked linked;
  {
    const MutexLock lock(mutex_);
    try {
      const TrackedParameter& tracked = parameters_.at(position);
      // A hook of the user may have stepped with the gradient and removed it.
      const at::Tensor& gradient = tracked.parameter.grad();
      if (tracked.foreign || !gradient.defined()) return;
      if (tracked.bucketed) {
        const auto& reduced = tracked.bucket->slots()[tracked.slot].reduced;
        if (reduced && reduced->same(gradient)) return;
      }
      linked = enter_pass();
      if (!kept_error_ && tracked.bucketed) take_gradient(tracked);
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

// Returns the reducers that must be told of the pass; the list is empty except the first time in a
// graph task.
GradientReducer::Linked GradientReducer::enter_pass() {
  const int current = torch::autograd::get_current_graph_task_id();
  if (!passes_.enter(current)) return {};
  BackwardEnd::add(current, shared_from_this());
  passes_.call_back_at_end(current);
  return linked_;
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

void GradientReducer::take_gradient(const TrackedParameter& tracked) {
  Bucket& bucket = *tracked.bucket;
  GradientSlot& slot = bucket.slots()[tracked.slot];
  if (options_.op != ReduceOp::kAverage && slot.reduced &&
      slot.reduced->same_object(tracked.parameter.grad())) {
    // Averaging once more is exact, because every rank holds the same average. Summing once more is
    // not. The error does no harm if the user discards these gradients: the generator's pass of a
    // GAN adds to the discriminator's gradients.
    throw SpoiledGradients("the gradient of '" + tracked.name +
                           "' was computed again after gradients had been summed over the ranks; "
                           "set backward_passes_per_step to the number of backward passes, or call "
                           "the optimizer's zero_grad() between them");
  }
  if (bucket.submitted()) {
    throw Exception({.code = ErrorCode::kInvalidArgument,
                     .text = "the gradient of '" + tracked.name +
                             "' was computed again while it was being reduced; after a backward "
                             "pass that raised call the optimizer's zero_grad(), and give "
                             "checkpointed segments that share a parameter use_reentrant=False"});
  }
  slot.reduced.reset();
  if (!passes_.in_last_pass()) return;  // gradients add up in p.grad
  if (other_hooks_follow(tracked)) overlap_ = Overlap::kOff;
  if (overlap_ == Overlap::kOff) return;  // taken when backward ends
  bucket.gradients().take_gradient(tracked.slot);
  if (overlap_ == Overlap::kTrial) {
    bucket.gradients().remember_contents(tracked.slot);
  } else if (bucket.gradients().complete() && options_.reduce_in_backward) {
    bucket.submit();
  }
}

// Returns true if hooks of the accumulator run after ours, so that p.grad may still change.
bool GradientReducer::other_hooks_follow(const TrackedParameter& tracked) {
  const GradientAccumulator& accumulator = tracked.bucket->slots()[tracked.slot].accumulator;
  if (accumulator == nullptr) return false;
  const auto& hooks = accumulator->post_hooks();
  const std::size_t ours = tracked.owners->settled() ? 0 : 1;
  if (hooks.size() <= ours) return false;
  for (const auto& hook : hooks) {
    if (typeid(*hook) == typeid(torch::autograd::utils::LambdaPostHook)) {  // DDP's
      TORCH_WARN_ONCE(
          "DistributedOptimizer: the model is wrapped in DistributedDataParallel too. Training is "
          "right, but gradients are reduced twice, first by DistributedDataParallel and then here, "
          "and no communication overlaps with backward. Train the model without that wrapper; "
          "docs/migrate-from-ddp.md says how to keep Accelerate, Lightning and Transformers from "
          "adding it.");
      break;
    }
  }
  return true;
}

// Ends the trial, at the end of a pass in which hooks have taken the gradients.
void GradientReducer::judge_overlap() {
  if (overlap_ != Overlap::kTrial) return;
  overlap_ = Overlap::kOn;
  for (const auto& bucket : parameters_.buckets()) {
    if (bucket->gradients().release_changed()) overlap_ = Overlap::kOff;
  }
}

void GradientReducer::graph_task_ended() noexcept {
  const MutexLock lock(mutex_);
  try {
    // A reentrant checkpoint runs its segment's backward pass within a node of the user's, and more
    // segments may follow. The pass ends with the outermost graph task, with the last gradient, or
    // in step().
    const bool nested = static_cast<bool>(torch::autograd::get_current_node());
    const auto& buckets = parameters_.buckets();
    const bool complete = std::all_of(buckets.begin(), buckets.end(), [](const auto& bucket) {
      return bucket->gradients().complete();
    });
    if (!passes_.leave(nested && !complete, kept_error_ != nullptr)) return;
    judge_overlap();
    if (options_.reduce_in_backward) sync_.reduce_now();
  } catch (...) {
    kept_error_ = std::current_exception();
  }
}

// -------------------------------------------------------------------------------------------
// A step

void GradientReducer::set_backward_passes_per_step(int passes) {
  const MutexLock lock(mutex_);
  passes_.set_per_step(passes);
}

void GradientReducer::synchronize() {
  synchronize_foreign();
  synchronize_own();
}

void GradientReducer::synchronize_own() {
  const MutexLock lock(mutex_);
  throw_kept_error();
  place_gradients();
  sync_.reduce_if_any_rank(sync_.needed());
}

// Synchronizes the optimizers that reduce gradients of this one's parameters.
void GradientReducer::synchronize_foreign() {
  std::map<std::uint64_t, std::shared_ptr<GradientReducer>> owners;
  {
    const MutexLock lock(mutex_);
    if (!parameters_.any_foreign()) return;
    for (const TrackedParameter& tracked : parameters_.all()) {
      if (!tracked.foreign) continue;
      auto owner = tracked.owners->owner();
      if (owner && owner.get() != this) owners.emplace(owner->number_, std::move(owner));
    }
  }
  for (const auto& [number, owner] : owners) owner->synchronize_own();
}

void GradientReducer::wait_in_step(const Wait& wait) {
  const MutexLock lock(mutex_);
  sync_.wait_beside_backward(wait);
}

void GradientReducer::finish_step() {
  const MutexLock lock(mutex_);
  passes_.start_step();
}

void GradientReducer::discard_step() {
  std::vector<std::shared_ptr<GradientOwners>> foreign;
  {
    const MutexLock lock(mutex_);
    if (parameters_.any_foreign()) {
      for (const TrackedParameter& tracked : parameters_.all()) {
        if (tracked.foreign) foreign.push_back(tracked.owners);
      }
    }
  }
  for (const auto& owners : foreign) owners->forget();
  const MutexLock lock(mutex_);
  if (kept_error_ && concerns_gradients_alone(kept_error_)) {
    kept_error_ = nullptr;
    sync_.await_in_flight();
    sync_.start_step();
  }
  throw_kept_error();
  place_gradients();
  // The test is for a taken gradient, not for a submitted bucket: all ranks have begun the same
  // pass, but they may have completed different buckets.
  const auto& buckets = parameters_.buckets();
  const bool begun = std::any_of(buckets.begin(), buckets.end(),
                                 [](const auto& bucket) { return bucket->gradients().begun(); });
  if (begun && options_.reduce_in_backward) sync_.reduce_now();
  sync_.start_step();
  for (const auto& bucket : buckets) bucket->gradients().forget_gradients();
}

void GradientReducer::throw_kept_error() {
  if (!kept_error_) return;
  sync_.await_in_flight();
  sync_.start_step();
  std::rethrow_exception(std::exchange(kept_error_, nullptr));
}

// -------------------------------------------------------------------------------------------
// A shared step

void GradientReducer::set_rule(std::size_t number, const kernels::UpdateRule& rule) {
  const MutexLock lock(mutex_);
  shared_step_.set_rule(number, rule);
}

void GradientReducer::confirm_sharing() {
  const MutexLock lock(mutex_);
  shared_step_.confirm_sharing();
}

StepOutcome GradientReducer::step(double gradient_scale, bool reduce, double max_norm,
                                  const std::string& objection) {
  if (reduce) synchronize_foreign();
  const MutexLock lock(mutex_);
  throw_kept_error();
  place_gradients();
  return shared_step_.step(gradient_scale, reduce, max_norm, objection);
}

void GradientReducer::hold_step() {
  const MutexLock lock(mutex_);
  shared_step_.hold_step();
}

LostStep GradientReducer::lost_step() {
  const MutexLock lock(mutex_);
  return shared_step_.lost_step();
}

void GradientReducer::complete_step() {
  const MutexLock lock(mutex_);
  shared_step_.complete_step();
}

void GradientReducer::end_completed_step() {
  const MutexLock lock(mutex_);
  shared_step_.end_completed_step();
}

double GradientReducer::norm() {
  const MutexLock lock(mutex_);
  return shared_step_.norm();
}

OptimizerState GradientReducer::state(std::size_t position, bool copies) {
  const MutexLock lock(mutex_);
  return shared_step_.state(position, copies);
}

void GradientReducer::adopt_state(std::size_t position, OptimizerState state) {
  const MutexLock lock(mutex_);
  shared_step_.adopt_state(position, std::move(state));
}

void GradientReducer::end_shared_step() {
  const MutexLock lock(mutex_);
  shared_step_.end_shared_step();
}

std::shared_ptr<GradientReducer> make_gradient_reducer(ReducerOptions options) {
  const auto world = default_world();
  if (options.wire_dtype && world->engine()->backend_choice().cpu != BackendId::kNative) {
    throw Exception({.code = ErrorCode::kUnsupported,
                     .text = "DistributedOptimizer: compression happens in ciranda's own ring, but "
                             "CIRANDA_CPU_OPERATIONS chose another backend; leave out the "
                             "compression or the variable"});
  }
  if (!options.wire_dtype) options.wire_dtype = world->config().wire_dtype;
  if (world->config().keep_heap) keep_heap_between_steps();
  return std::make_shared<GradientReducer>(world->engine(), std::move(options));
}

}  // namespace ciranda
