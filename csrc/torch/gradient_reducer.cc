#include "torch/gradient_reducer.h"

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>

#include "torch/collectives.h"
#include "torch/error.h"
#include "torch/tensor_view.h"

namespace ciranda {

namespace {

at::Tensor gather_rows(const at::Tensor& rows, const std::string& name) {
  const HandleId handle = allgather_async({rows}, name);
  return ciranda::synchronize(handle)->tensors[0];
}

}  // namespace

// Fires after autograd has accumulated a parameter's gradient.
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

GradientReducer::GradientReducer(std::shared_ptr<Engine> engine, ReducerOptions options)
    : engine_(std::move(engine)),
      options_(std::move(options)),
      passes_(options_.backward_passes_per_step) {}

GradientReducer::~GradientReducer() {
  for (Hooked& hooked : hooked_) hooked.accumulator->del_post_hook(hooked.hook);
}

void GradientReducer::add_parameters(NamedParameters parameters) {
  const MutexLock lock(mutex_);
  for (auto& [name, parameter] : parameters) {
    candidates_.push_back({.name = std::move(name), .parameter = std::move(parameter)});
  }
  place_unfrozen();
}

void GradientReducer::set_backward_passes_per_step(int passes) {
  const MutexLock lock(mutex_);
  passes_ = passes;
  for (Hooked& hooked : hooked_) hooked.passes_left = passes;
}

std::size_t GradientReducer::arena_bytes() {
  const MutexLock lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& bucket : buckets_) bytes += bucket->arena_bytes();
  return bytes;
}

std::size_t GradientReducer::bucket_count() {
  const MutexLock lock(mutex_);
  return buckets_.size();
}

// -------------------------------------------------------------------------------------------
// Layout

// Every parameter that requires a gradient and has no place yet gets one: in groups as the user
// asked, else in reverse order of registration (backward's order), by dtype, up to bucket_bytes.
void GradientReducer::place_unfrozen() {
  std::map<std::size_t, std::size_t> group_of;
  for (std::size_t g = 0; g < options_.groups.size(); ++g) {
    for (const std::size_t index : options_.groups[g]) group_of[index] = g;
  }
  std::map<std::pair<std::size_t, c10::ScalarType>, NamedParameters> grouped;
  std::map<c10::ScalarType, NamedParameters> open;
  std::map<c10::ScalarType, std::int64_t> open_bytes;
  for (std::size_t i = candidates_.size(); i-- > 0;) {
    Candidate& candidate = candidates_[i];
    if (candidate.placed || !candidate.parameter.requires_grad()) continue;
    candidate.placed = true;
    const c10::ScalarType type = candidate.parameter.scalar_type();
    if (const auto group = group_of.find(i); group != group_of.end()) {
      grouped[{group->second, type}].emplace_back(candidate.name, candidate.parameter);
      continue;
    }
    NamedParameters& bucket = open[type];
    const auto bytes = static_cast<std::int64_t>(candidate.parameter.nbytes());
    if (!bucket.empty() && open_bytes[type] + bytes > options_.bucket_bytes) {
      place_bucket(std::exchange(bucket, {}));
      open_bytes[type] = 0;
    }
    bucket.emplace_back(candidate.name, candidate.parameter);
    open_bytes[type] += bytes;
  }
  for (auto& [key, parameters] : grouped) place_bucket(std::move(parameters));
  for (auto& [type, parameters] : open) {
    if (!parameters.empty()) place_bucket(std::move(parameters));
  }
}

void GradientReducer::place_bucket(NamedParameters parameters) {
  for (const auto& [name, parameter] : parameters) {
    const std::string what = "DistributedOptimizer: parameter '" + name + "'";
    if (!parameter.device().is_cpu()) check_usable(parameter, what);  // says what to do
    if (!is_floating(dtype_of(parameter.scalar_type(), what))) {
      throw Exception({.code = ErrorCode::kInvalidArgument,
                       .text = what + " is not of a floating dtype"});
    }
  }
  const double size = engine_->size();
  const double factor = options_.predivide_factor;
  Bucket::Options options{.name = options_.name + "/bucket." + std::to_string(buckets_.size()),
                          .op = options_.op,
                          .compression = options_.compression};
  if (factor != 1.0) {
    options.op = ReduceOp::kSum;
    options.prescale = 1.0 / factor;
    options.postscale = factor / (options_.op == ReduceOp::kAverage ? size : 1.0);
  }
  auto bucket = std::make_unique<Bucket>(engine_, std::move(options), std::move(parameters));
  for (std::size_t slot = 0; slot < bucket->slots().size(); ++slot) {
    Hooked hooked;
    hooked.accumulator = torch::autograd::impl::grad_accumulator(bucket->slots()[slot].parameter);
    hooked.hook = hooked.accumulator->add_post_hook(
        std::make_unique<GradientHook>(weak_from_this(), hooked_.size()));
    hooked.bucket = bucket.get();
    hooked.slot = slot;
    hooked.passes_left = passes_;
    hooked_.push_back(std::move(hooked));
  }
  buckets_.push_back(std::move(bucket));
}

// -------------------------------------------------------------------------------------------
// A step

void GradientReducer::gradient_is_there(std::size_t index) {
  const MutexLock lock(mutex_);
  Hooked& hooked = hooked_[index];
  Bucket& bucket = *hooked.bucket;
  const BucketSlot& slot = bucket.slots()[hooked.slot];
  if (synchronized_) {
    // Another backward on top of reduced gradients. Averaging them again is exact: every rank
    // holds the same average already. A sum would count them once for every rank.
    if (options_.op != ReduceOp::kAverage) {
      throw Exception({.code = ErrorCode::kInvalidArgument,
                       .text = "the gradient of '" + slot.name +
                               "' was computed again after it had been summed over the ranks; set "
                               "backward_passes_per_step, or call step() and zero_grad() between"});
    }
    synchronized_ = false;
  }
  if (hooked.passes_left <= 0 || bucket.submitted()) {
    throw Exception({.code = ErrorCode::kInvalidArgument,
                     .text = "the gradient of '" + slot.name +
                             "' was computed more than backward_passes_per_step=" +
                             std::to_string(passes_) +
                             " times before step(); set backward_passes_per_step to the number of "
                             "backward passes"});
  }
  if (!callback_queued_) {
    callback_queued_ = true;
    torch::autograd::Engine::get_default_engine().queue_callback(
        [weak = weak_from_this()] {
          if (const auto reducer = weak.lock()) reducer->backward_ended();
        });
  }
  if (--hooked.passes_left > 0) return;
  at::Tensor& gradient = hooked.bucket->slots()[hooked.slot].parameter.mutable_grad();
  if (options_.sparse_as_dense && gradient.defined() &&
      gradient.layout() != c10::Layout::Strided) {
    gradient = gradient.to_dense();
  }
  bucket.take_gradient(hooked.slot);
  if (bucket.complete()) bucket.submit();
}

void GradientReducer::backward_ended() noexcept {
  const MutexLock lock(mutex_);
  callback_queued_ = false;
  if (!all_complete() || hooked_.empty()) return;
  try {
    reduce_now();
  } catch (...) {
    backward_error_ = std::current_exception();
  }
}

bool GradientReducer::all_complete() const {
  return std::all_of(buckets_.begin(), buckets_.end(),
                     [](const auto& bucket) { return bucket->complete(); });
}

void GradientReducer::synchronize() {
  const MutexLock lock(mutex_);
  callback_queued_ = false;  // a backward that raised never called back
  if (backward_error_) std::rethrow_exception(std::exchange(backward_error_, nullptr));
  if (synchronized_) return;
  place_unfrozen();
  reduce_now();
}

void GradientReducer::finish_step() {
  const MutexLock lock(mutex_);
  synchronized_ = false;
}

void GradientReducer::settle() {
  const MutexLock lock(mutex_);
  const bool in_flight = std::any_of(buckets_.begin(), buckets_.end(),
                                     [](const auto& bucket) { return bucket->submitted(); });
  if (in_flight) reduce_now();
}

// Leaves the reducer ready for a new step, also when it throws.
void GradientReducer::reduce_now() {
  std::vector<Handle> handles;
  try {
    for (const auto& bucket : buckets_) {
      for (std::size_t slot = 0; slot < bucket->slots().size(); ++slot) {
        if (!bucket->slots()[slot].ready) bucket->take_gradient(slot);
      }
      if (!bucket->submitted()) bucket->submit();
      handles.push_back(bucket->handle());
    }
    check(engine_->wait(handles));
    for (const auto& bucket : buckets_) bucket->publish();
    for (const auto& bucket : buckets_) reduce_sparse(*bucket);
  } catch (...) {
    start_round();
    throw;
  }
  start_round();
  synchronized_ = true;
}

void GradientReducer::start_round() {
  for (const auto& bucket : buckets_) bucket->reset();
  for (Hooked& hooked : hooked_) hooked.passes_left = passes_;
}

// Sparse gradients travel as rows: every rank gathers all ranks' indices and values, ranks without
// a gradient take part with none.
void GradientReducer::reduce_sparse(Bucket& bucket) {
  for (std::size_t i = 0; i < bucket.slots().size(); ++i) {
    if (!bucket.sparse_anywhere(i)) continue;
    BucketSlot& slot = bucket.slots()[i];
    at::Tensor& gradient = slot.parameter.mutable_grad();
    const bool ours = slot.sparse && gradient.defined();
    std::int64_t sparse_dim = 1;  // embeddings: one index a row
    at::Tensor indices;
    at::Tensor values;
    if (ours) {
      const at::Tensor coalesced = gradient.coalesce();
      sparse_dim = coalesced.sparse_dim();
      indices = coalesced._indices().t().contiguous();
      values = coalesced._values().contiguous();
    } else {
      std::vector<std::int64_t> shape = slot.parameter.sizes().vec();
      shape[0] = 0;
      indices = at::empty({0, sparse_dim}, at::TensorOptions().dtype(c10::ScalarType::Long));
      values = at::empty(shape, slot.view.options());
    }
    const std::string name = options_.name + "/sparse." + slot.name.substr(0, 200);
    auto all_indices = gather_rows(indices, name + ".indices");
    auto all_values = gather_rows(values, name + ".values");
    if (options_.op == ReduceOp::kAverage) {
      all_values.div_(static_cast<double>(engine_->size()));
    }
    at::Tensor sum = at::_sparse_coo_tensor_unsafe(all_indices.t(), all_values,
                                                   slot.parameter.sizes())
                         .coalesce();
    if (bucket.dense_anywhere(i)) {
      slot.view.add_(sum);
      gradient = slot.view;
    } else {
      gradient = std::move(sum);
    }
  }
}

}  // namespace ciranda
