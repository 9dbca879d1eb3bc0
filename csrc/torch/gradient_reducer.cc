#include "torch/gradient_reducer.h"

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "torch/collectives.h"
#include "torch/default_world.h"
#include "torch/error.h"
#include "torch/heap.h"
#include "torch/tensor_view.h"

namespace ciranda {

// Fires after autograd has accumulated a parameter's gradient. Outlives the reducer as a stub: to
// remove it would race with a backward pass in another thread.
class GradientHook final : public torch::autograd::FunctionPostHook {
 public:
  GradientHook(std::weak_ptr<GradientReducer> reducer, std::size_t index)
      : reducer_(std::move(reducer)), index_(index) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list& /*inputs*/) override {
    if (const auto reducer = reducer_.lock()) reducer->gradient_is_there(index_);
    return outputs;
  }
  // Compiled autograd does not run this hook; synchronize() then finds the gradients itself.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

 private:
  const std::weak_ptr<GradientReducer> reducer_;
  const std::size_t index_;
};

// Only within a host can the step reduce what it updates: with several, gradients are reduced
// first.
GradientReducer::GradientReducer(std::shared_ptr<Engine> engine, ReducerOptions options)
    : engine_(std::move(engine)),
      options_([&] {
        options.reduce_in_backward = options.reduce_in_backward || !engine_->one_host();
        return std::move(options);
      }()),
      passes_(options_.backward_passes_per_step) {}

void GradientReducer::add_parameters(NamedParameters parameters, std::vector<std::size_t> rules) {
  const MutexLock lock(mutex_);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto& [name, parameter] = parameters[i];
    candidates_.push_back({.name = std::move(name),
                           .parameter = std::move(parameter),
                           .rule = options_.shared_step ? rules.at(i) : 0});
    ++unplaced_;
  }
  place_unfrozen();
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
// Layout

namespace {

// The CPU reduces what its caches hold; for a GPU's network to be busy takes more.
constexpr std::int64_t kBucketBytes = 4 << 20;
constexpr std::int64_t kDeviceBucketBytes = 25 << 20;

}  // namespace

// Every parameter that requires a gradient and has no place yet gets one: in groups as the user
// asked, else in reverse order of registration (backward's order), by device and dtype, up to
// bucket_bytes.
void GradientReducer::place_unfrozen() {
  if (unplaced_ == 0) return;
  std::map<std::size_t, std::size_t> group_of;
  for (std::size_t g = 0; g < options_.groups.size(); ++g) {
    for (const std::size_t index : options_.groups[g]) group_of[index] = g;
  }
  using Indices = std::vector<std::size_t>;  // of candidates
  std::vector<Indices> full;
  // Devices by number: a GPU's index differs between ranks.
  std::vector<c10::Device> devices;
  const auto number_of = [&devices](c10::Device device) {
    const auto number = std::find(devices.begin(), devices.end(), device) - devices.begin();
    if (static_cast<std::size_t>(number) == devices.size()) devices.push_back(device);
    return number;
  };
  using Kind = std::tuple<std::size_t, std::ptrdiff_t, c10::ScalarType>;  // rule, device, dtype
  std::map<std::pair<std::size_t, Kind>, Indices> grouped;
  std::map<Kind, Indices> open;
  std::map<Kind, std::int64_t> open_bytes;
  for (std::size_t i = candidates_.size(); i-- > 0;) {
    const Candidate& candidate = candidates_[i];
    if (candidate.placed || !candidate.parameter.requires_grad()) continue;
    const Kind kind{candidate.rule, number_of(candidate.parameter.device()),
                    candidate.parameter.scalar_type()};
    if (const auto group = group_of.find(i); group != group_of.end()) {
      grouped[{group->second, kind}].push_back(i);
      continue;
    }
    const auto bytes = static_cast<std::int64_t>(candidate.parameter.nbytes());
    const std::int64_t bytes_max = options_.bucket_bytes.value_or(
        candidate.parameter.is_cpu() ? kBucketBytes : kDeviceBucketBytes);
    if (!open[kind].empty() && open_bytes[kind] + bytes > bytes_max) {
      full.push_back(std::exchange(open[kind], {}));
      open_bytes[kind] = 0;
    }
    open[kind].push_back(i);
    open_bytes[kind] += bytes;
  }
  for (const Indices& candidates : full) place_bucket(candidates);
  for (const auto& [key, candidates] : grouped) place_bucket(candidates);
  for (const auto& [kind, candidates] : open) place_bucket(candidates);
}

void GradientReducer::place_bucket(const std::vector<std::size_t>& candidates) {
  NamedParameters parameters;
  for (const std::size_t index : candidates) {
    const std::string& name = candidates_[index].name;
    const at::Tensor& parameter = candidates_[index].parameter;
    const std::string what = "DistributedOptimizer: parameter '" + name + "'";
    check_device(parameter.device(), what);
    if (!is_floating(dtype_of(parameter.scalar_type(), what))) {
      throw Exception(
          {.code = ErrorCode::kInvalidArgument, .text = what + " is not of a floating dtype"});
    }
    parameters.emplace_back(name, parameter);
  }
  const double size = engine_->size();
  const double factor = options_.predivide_factor;
  Bucket::Options options{.name = options_.name + "/bucket." + std::to_string(buckets_.size()),
                          .op = options_.op,
                          .wire_dtype = options_.wire_dtype,
                          .sparse_as_dense = options_.sparse_as_dense,
                          .shared_step = options_.shared_step,
                          .share_parameters = options_.share_parameters,
                          .rule = candidates_[candidates.front()].rule};
  if (factor != 1.0) {
    options.op = ReduceOp::kSum;
    options.prescale = 1.0 / factor;
    options.postscale = factor / (options_.op == ReduceOp::kAverage ? size : 1.0);
  }
  const auto& [first, parameter] = parameters.front();
  if (!parameter.device().is_cpu()) {
    options.stream =
        default_stream(parameter.device(), "DistributedOptimizer: parameter '" + first + "'");
  }
  auto bucket = std::make_unique<Bucket>(engine_, std::move(options), std::move(parameters));
  for (std::size_t slot = 0; slot < bucket->slots().size(); ++slot) {
    bucket->slots()[slot].accumulator->add_post_hook(
        std::make_unique<GradientHook>(weak_from_this(), hooked_.size()));
    hooked_.push_back({.bucket = bucket.get(), .index = slot});
  }
  buckets_.push_back(std::move(bucket));
  for (std::size_t slot = 0; slot < candidates.size(); ++slot) {
    Candidate& candidate = candidates_[candidates[slot]];
    candidate.placed = true;
    candidate.bucket = buckets_.back().get();
    candidate.slot = slot;
  }
  unplaced_ -= candidates.size();
}

// -------------------------------------------------------------------------------------------
// In backward

void GradientReducer::gradient_is_there(std::size_t index) noexcept {
  const MutexLock lock(mutex_);
  try {
    in_pass_ = true;
    call_back_at_the_end();
    if (!kept_error_) take_gradient(hooked_[index]);
  } catch (...) {
    kept_error_ = std::current_exception();
  }
}

void GradientReducer::take_gradient(const Slot& hooked) {
  Bucket& bucket = *hooked.bucket;
  const std::string& name = hooked.get().name;
  if (synchronized_ && options_.op != ReduceOp::kAverage) {
    // To average once more is exact: every rank holds the same average. To sum is not.
    throw Exception({.code = ErrorCode::kInvalidArgument,
                     .text = "the gradient of '" + name +
                             "' was computed again after gradients had been summed over the ranks; "
                             "set backward_passes_per_step to the number of backward passes, or "
                             "call the optimizer's zero_grad() or step() between them"});
  }
  synchronized_ = false;
  if (bucket.submitted()) {
    throw Exception({.code = ErrorCode::kInvalidArgument,
                     .text = "the gradient of '" + name +
                             "' was computed again while it was being reduced; after a backward "
                             "pass that raised call the optimizer's zero_grad(), and give "
                             "checkpointed segments that share a parameter use_reentrant=False"});
  }
  if (passes_done_ + 1 < passes_) return;  // adds up in p.grad
  bucket.take_gradient(hooked.index);
  if (bucket.complete() && options_.reduce_in_backward) bucket.submit();
}

// A graph task that raises does not call back: each one that runs a hook is told to.
void GradientReducer::call_back_at_the_end() {
  const int current = torch::autograd::get_current_graph_task_id();
  if (current == graph_task_) return;
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
    if (const auto reducer = weak.lock()) reducer->graph_task_ended();
  });
  graph_task_ = current;
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
  const MutexLock lock(mutex_);
  throw_kept_error();
  if (!synchronized_) reduce_now();
}

void GradientReducer::finish_step() {
  const MutexLock lock(mutex_);
  synchronized_ = in_pass_ = false;
  passes_done_ = 0;
}

void GradientReducer::settle() {
  const MutexLock lock(mutex_);
  throw_kept_error();
  place_unfrozen();
  // Any gradient taken, not any bucket submitted: what a pass has begun is the same on all ranks,
  // which buckets it has completed is not.
  const bool begun = std::any_of(buckets_.begin(), buckets_.end(),
                                 [](const auto& bucket) { return bucket->begun(); });
  if (begun && options_.reduce_in_backward) reduce_now();
  start_step();
}

void GradientReducer::set_rule(std::size_t number, const kernels::UpdateRule& rule) {
  const MutexLock lock(mutex_);
  if (rules_.size() <= number) rules_.resize(number + 1);
  rules_[number] = {.rule = rule, .words = rule_text(rule)};
}

std::vector<std::size_t> GradientReducer::step(double gradient_scale, bool reduce,
                                               double max_norm) {
  const MutexLock lock(mutex_);
  throw_kept_error();
  place_unfrozen();
  if (reduce && !synchronized_ && options_.reduce_in_backward) reduce_now();
  const bool reduced = synchronized_ || !reduce;
  double scale = gradient_scale;
  if (!reduced && options_.op == ReduceOp::kAverage) scale /= static_cast<double>(engine_->size());
  try {
    for (const auto& bucket : buckets_) {
      bucket->host_step()->prepare(rules_.at(bucket->rule()).rule);
    }
    for (Candidate& candidate : candidates_) {
      if (!candidate.placed || !candidate.state) continue;
      candidate.bucket->host_step()->adopt(candidate.slot, *candidate.state);
    }
    for (const auto& bucket : buckets_) bucket->take_gradients();
    const auto run = [&](void (Bucket::*submit)(const HostStep::Step&)) REQUIRES(mutex_) {
      std::vector<Handle> handles;
      for (const auto& bucket : buckets_) {
        const auto& [rule, words] = rules_.at(bucket->rule());
        (*bucket.*
         submit)({.rule = rule, .words = words, .gradient_scale = scale, .reduced = reduced});
        bucket->append_handles(handles);
      }
      check(engine_->wait(handles));
    };
    if (max_norm > 0.0) {
      run(&Bucket::submit_squares);
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
    run(&Bucket::submit_step);
  } catch (...) {
    await_in_flight();
    start_step();
    throw;
  }
  std::vector<std::size_t> fresh;
  for (std::size_t position = 0; position < candidates_.size(); ++position) {
    Candidate& candidate = candidates_[position];
    if (!candidate.placed) continue;
    const bool adopted = std::exchange(candidate.state, std::nullopt).has_value();
    const bool first = candidate.bucket->dense_anywhere(candidate.slot) &&
                       candidate.bucket->host_step()->count(candidate.slot);
    if (first || adopted) fresh.push_back(position);
  }
  start_step();
  return fresh;
}

double GradientReducer::norm() {
  const MutexLock lock(mutex_);
  return norm_;
}

HostStep::State GradientReducer::state(std::size_t position) {
  const MutexLock lock(mutex_);
  const Candidate& candidate = candidates_.at(position);
  if (!candidate.placed) return {};
  return candidate.bucket->host_step()->state(candidate.slot);
}

void GradientReducer::adopt_state(std::size_t position, HostStep::State state) {
  const MutexLock lock(mutex_);
  Candidate& candidate = candidates_.at(position);
  if (candidate.placed && candidate.bucket->host_step()->prepared()) {
    candidate.bucket->host_step()->adopt(candidate.slot, state);
  } else {
    candidate.state = std::move(state);
  }
}

// Leaves the reducer ready for a new step, also when it throws.
void GradientReducer::reduce_now() {
  try {
    place_unfrozen();
    std::vector<Handle> handles;
    for (const auto& bucket : buckets_) {
      if (!bucket->submitted()) {
        for (std::size_t slot = 0; slot < bucket->slots().size(); ++slot) {
          if (!bucket->slots()[slot].ready) bucket->take_gradient(slot);
        }
        bucket->submit();
      }
      bucket->append_handles(handles);
    }
    check(engine_->wait(handles));
    for (const auto& bucket : buckets_) bucket->publish();
    reduce_sparse();
  } catch (...) {
    await_in_flight();
    start_step();
    throw;
  }
  start_step();
  synchronized_ = true;
}

void GradientReducer::start_step() {
  for (const auto& bucket : buckets_) bucket->reset();
  synchronized_ = in_pass_ = false;
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
  std::rethrow_exception(std::exchange(kept_error_, nullptr));
}

// -------------------------------------------------------------------------------------------
// Sparse gradients

namespace {

struct Rows {
  at::Tensor indices;  // {rows, 1}
  at::Tensor values;
};

// Which rows a gradient has and what is in them; none for an undefined one.
Rows rows_of(const at::Tensor& gradient, const at::Tensor& parameter) {
  if (!gradient.defined()) {
    std::vector<std::int64_t> shape = parameter.sizes().vec();
    shape[0] = 0;
    const auto options = parameter.options().requires_grad(false);
    return {.indices = at::empty({0, 1}, options.dtype(c10::ScalarType::Long)),
            .values = at::empty(shape, options)};
  }
  const bool has_rows = gradient.layout() == c10::Layout::Sparse && gradient.sparse_dim() == 1;
  const at::Tensor sparse = (has_rows ? gradient : gradient.to_dense().to_sparse(1)).coalesce();
  return {.indices = sparse._indices().t().contiguous(), .values = sparse._values().contiguous()};
}

}  // namespace

// The slots that any rank had sparse gradients for, in one request for those of a device.
void GradientReducer::reduce_sparse() {
  std::vector<Slot> slots;
  for (const auto& bucket : buckets_) {
    for (std::size_t i = 0; i < bucket->slots().size(); ++i) {
      const bool by_rows = bucket->slots()[i].by_rows && bucket->dense_anywhere(i);
      if (bucket->sparse_anywhere(i) || by_rows) slots.push_back({bucket.get(), i});
    }
  }
  if (slots.empty()) return;
  while (!slots.empty()) {
    const c10::Device device = slots.front().get().parameter.device();
    const auto others = std::stable_partition(
        slots.begin(), slots.end(),
        [device](const Slot& slot) { return slot.get().parameter.device() == device; });
    gather_rows({slots.begin(), others});
    slots.erase(slots.begin(), others);
  }
  for (const auto& bucket : buckets_) bucket->move_sparse_out();
}

// Every rank gathers all ranks' rows.
void GradientReducer::gather_rows(const std::vector<Slot>& slots) {
  std::vector<at::Tensor> pieces;
  for (const Slot& place : slots) {
    const BucketSlot& slot = place.get();
    const bool travels = slot.sparse || (slot.by_rows && slot.used);  // else it is in the view
    Rows rows = rows_of(travels ? slot.parameter.grad() : at::Tensor(), slot.parameter);
    pieces.push_back(std::move(rows.indices));
    pieces.push_back(std::move(rows.values));
  }
  const HandleId handle = allgather_async(std::move(pieces), options_.name + "/sparse");
  const std::vector<at::Tensor> gathered = ciranda::synchronize(handle)->tensors;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    BucketSlot& slot = slots[i].get();
    at::Tensor values = gathered[2 * i + 1];
    if (options_.op == ReduceOp::kAverage) values.div_(static_cast<double>(engine_->size()));
    const at::Tensor sum =
        at::_sparse_coo_tensor_unsafe(gathered[2 * i].t(), values, slot.parameter.sizes())
            .coalesce();
    at::Tensor& gradient = slot.parameter.mutable_grad();
    if (!slots[i].bucket->dense_anywhere(slots[i].index)) {
      gradient = sum;
    } else if (slot.by_rows) {
      gradient = sum.to_dense();
    } else {
      slot.view.add_(sum);
      gradient = slot.view;
    }
  }
}

// -------------------------------------------------------------------------------------------

std::optional<DType> wire_dtype_of(Compression compression) {
  if (compression == Compression::kNone) return std::nullopt;
  return compression == Compression::kFloat16 ? DType::kFloat16 : DType::kBFloat16;
}

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
