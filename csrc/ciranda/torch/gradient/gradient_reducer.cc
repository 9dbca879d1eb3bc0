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

#include "ciranda/torch/collective/collectives.h"
#include "ciranda/torch/gradient/bucket_plan.h"
#include "ciranda/torch/process/default_world.h"
#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/heap.h"
#include "ciranda/torch/tensor/tensor_view.h"
#include "core/base/assert.h"

namespace ciranda {

namespace {

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> number = 0;
  return number++;
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
      shared_step_(options_.shared_step) {}

GradientReducer::~GradientReducer() {
  for (const TrackedParameter& tracked : tracked_) tracked.owners->remove(this);
}

void GradientReducer::add_parameters(NamedParameters parameters, std::vector<std::size_t> rules) {
  std::vector<std::shared_ptr<GradientOwners>> owners;
  std::size_t first = 0;
  {
    const MutexLock lock(mutex_);
    first = tracked_.size();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      auto& [name, parameter] = parameters[i];
      owners.push_back(GradientOwners::of(parameter));
      tracked_.push_back({.parameter = std::move(parameter),
                          .name = std::move(name),
                          .owners = owners.back(),
                          .rule = shared_step_ ? rules.at(i) : 0});
      ++unbucketed_;
    }
    look_for_hooks_ = true;
  }
  for (std::size_t i = 0; i < owners.size(); ++i) owners[i]->add(shared_from_this(), first + i);
  const MutexLock lock(mutex_);
  refresh_hooks();
  bucket_unfrozen();
  // This is collective, and no rank has joined yet.
  if (shared_step_) prepare_buckets();
}

// Puts hooks and places where autograd looks for them. A parameter that was converted has another
// accumulator.
void GradientReducer::refresh_hooks() {
  bool needed = look_for_hooks_.exchange(false);
  for (const auto& bucket : buckets_) needed = bucket->gradients().had_strays() || needed;
  if (!needed) return;
  for (TrackedParameter& tracked : tracked_) {
    if (tracked.foreign) continue;
    GradientBuffer* const gradients = tracked.bucketed ? &tracked.bucket->gradients() : nullptr;
    const bool known = gradients == nullptr || gradients->knows_accumulator(tracked.slot);
    if (known && tracked.owners->settled()) continue;
    const auto accumulator = tracked.owners->hook(tracked.parameter);
    if (accumulator && gradients != nullptr) gradients->attach(tracked.slot, accumulator);
    if (!tracked.owners->settled()) look_for_hooks_ = true;
  }
}

// Gives a bucket to every parameter that requires a gradient and has none yet. `frozen_too`: also
// frozen ones of a floating dtype.
void GradientReducer::bucket_unfrozen(bool frozen_too) {
  if (unbucketed_ == 0) return;
  std::vector<Unplaced> wanted;
  for (std::size_t position = 0; position < tracked_.size(); ++position) {
    const TrackedParameter& tracked = tracked_[position];
    if (tracked.bucketed) continue;
    if (tracked.parameter.requires_grad() ||
        (frozen_too && tracked.parameter.is_floating_point())) {
      wanted.push_back({position, tracked.parameter, tracked.rule});
    }
  }
  for (const auto& positions : plan_buckets(wanted, options_)) add_bucket(positions);
}

void GradientReducer::add_bucket(const std::vector<std::size_t>& positions) {
  std::vector<GradientBuffer::Member> members;
  for (const std::size_t position : positions) {
    const std::string& name = tracked_[position].name;
    const at::Tensor& parameter = tracked_[position].parameter;
    const std::string what = "DistributedOptimizer: parameter '" + name + "'";
    check_device(parameter.device(), what);
    if (!is_floating(dtype_of(parameter.scalar_type(), what))) {
      throw Exception(
          {.code = ErrorCode::kInvalidArgument, .text = what + " is not of a floating dtype"});
    }
    members.push_back({.name = name,
                       .parameter = parameter,
                       .accumulator = tracked_[position].owners->hook(parameter)});
  }
  Bucket::Contents contents{.reduction = reduction_of(options_, among_->group->size()),
                            .rule = tracked_[positions.front()].rule,
                            .shared_step = shared_step_};
  contents.reduction.name += "/bucket." + std::to_string(buckets_.size());
  const auto& [first, parameter, accumulator] = members.front();
  if (!parameter.device().is_cpu()) {
    const std::string what = "DistributedOptimizer: parameter '" + first + "'";
    if (shared_step_) {
      throw Exception({.code = ErrorCode::kInvalidArgument,
                       .text = what + " is on " + parameter.device().str() +
                               ", but ranks share the step of CPU parameters only; make the "
                               "optimizer after moving every parameter to its final device"});
    }
    contents.stream = default_stream(parameter.device(), what);
  }
  contents.members = std::move(members);
  buckets_.push_back(std::make_unique<Bucket>(among_, options_, std::move(contents)));
  for (std::size_t slot = 0; slot < positions.size(); ++slot) {
    TrackedParameter& tracked = tracked_[positions[slot]];
    CIRANDA_ASSERT(!tracked.bucketed);  // I15
    tracked.bucketed = true;
    tracked.bucket = buckets_.back().get();
    tracked.slot = slot;
    tracked.bucket->set_foreign(slot, tracked.foreign);
  }
  CIRANDA_ASSERT(positions.size() <= unbucketed_);
  unbucketed_ -= positions.size();
}

void GradientReducer::set_foreign(std::size_t position, bool foreign) {
  const MutexLock lock(mutex_);
  TrackedParameter& tracked = tracked_.at(position);
  if (tracked.foreign == foreign) return;
  tracked.foreign = foreign;
  CIRANDA_ASSERT(foreign ? foreign_ < tracked_.size() : foreign_ > 0);
  foreign ? ++foreign_ : --foreign_;
  if (!foreign) look_for_hooks_ = true;
  if (tracked.bucketed) tracked.bucket->set_foreign(tracked.slot, foreign);
}

void GradientReducer::forget(std::size_t position) {
  const MutexLock lock(mutex_);
  const TrackedParameter& tracked = tracked_.at(position);
  if (tracked.bucketed) tracked.bucket->slots()[tracked.slot].reduced.reset();
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
  for (const auto& bucket : buckets_) bytes += bucket->gradients().moved_bytes();
  return bytes;
}

std::size_t GradientReducer::bucket_count() {
  const MutexLock lock(mutex_);
  return buckets_.size();
}

// -------------------------------------------------------------------------------------------
// In backward

void GradientReducer::on_gradient_ready(std::size_t position) noexcept {
  Linked linked;
  {
    const MutexLock lock(mutex_);
    try {
      const TrackedParameter& tracked = tracked_.at(position);
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

void GradientReducer::take_gradient(const TrackedParameter& tracked) {
  Bucket& bucket = *tracked.bucket;
  GradientSlot& slot = bucket.slots()[tracked.slot];
  if (options_.op != ReduceOp::kAverage && slot.reduced &&
      slot.reduced->same_object(tracked.parameter.grad())) {
    // Averaging once more is exact, because every rank holds the same average. Summing once more is
    // not. The error does no harm if the user discards these gradients: the generator's pass of a
    // GAN adds to the discriminator's gradients.
    gradients_spoiled_ = true;
    throw Exception({.code = ErrorCode::kInvalidArgument,
                     .text = "the gradient of '" + tracked.name +
                             "' was computed again after gradients had been summed over the ranks; "
                             "set backward_passes_per_step to the number of backward passes, or "
                             "call the optimizer's zero_grad() between them"});
  }
  if (bucket.submitted()) {
    throw Exception({.code = ErrorCode::kInvalidArgument,
                     .text = "the gradient of '" + tracked.name +
                             "' was computed again while it was being reduced; after a backward "
                             "pass that raised call the optimizer's zero_grad(), and give "
                             "checkpointed segments that share a parameter use_reentrant=False"});
  }
  slot.reduced.reset();
  if (passes_done_ + 1 < passes_) return;  // gradients add up in p.grad
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
  for (const auto& bucket : buckets_) {
    if (bucket->gradients().release_changed()) overlap_ = Overlap::kOff;
  }
}

// Registers this reducer for the end of the current graph task. A graph task that raises does not
// call back, so each one that runs a hook is registered. Returns false if this one already was.
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
    // segments may follow. The pass ends with the outermost graph task, with the last gradient, or
    // in step().
    const bool nested = static_cast<bool>(torch::autograd::get_current_node());
    const bool complete = std::all_of(buckets_.begin(), buckets_.end(), [](const auto& bucket) {
      return bucket->gradients().complete();
    });
    if (nested && !complete) return;
    if (!std::exchange(in_pass_, false) || kept_error_) return;
    if (++passes_done_ < passes_) return;
    judge_overlap();
    if (options_.reduce_in_backward) reduce_now();
  } catch (...) {
    kept_error_ = std::current_exception();
  }
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
