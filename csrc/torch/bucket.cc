#include "torch/bucket.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/kernels/reduce.h"
#include "torch/error.h"
#include "torch/tensor_view.h"

namespace ciranda {
namespace {

// Slots start on cache lines: kernels and optimizers stay aligned, ranks share no line.
constexpr std::int64_t kSlotBytes = 64;

// Below this to copy a gradient costs no more than to have it born in its place.
constexpr std::size_t kPlaceBytesMin = 4096;

std::int64_t padded(std::int64_t elements, std::size_t element_bytes) {
  const std::int64_t unit = kSlotBytes / static_cast<std::int64_t>(element_bytes);
  return (elements + unit - 1) / unit * unit;
}

// Strides of a gradient for `parameter`: its own where it covers its memory without holes
// (contiguous, channels_last, transposed), else contiguous ones. Autograd's layout contract.
std::vector<std::int64_t> gradient_strides(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  std::vector<std::int64_t> strides(static_cast<std::size_t>(parameter.dim()));
  std::int64_t stride = 1;
  for (std::size_t d = strides.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= parameter.size(static_cast<std::int64_t>(d));
  }
  return strides;
}

// Element for element in the same order.
bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         ((a.is_contiguous() && b.is_contiguous()) || a.strides() == b.strides());
}

void fill_with_zeros(at::Tensor& memory) {
  if (!memory.is_cpu()) {
    memory.zero_();
  } else if (memory.nbytes() > 0) {
    std::memset(memory.mutable_data_ptr(), 0, memory.nbytes());
  }
}

void copy_values(const at::Tensor& to, const at::Tensor& from) {
  if (to.is_cpu() && same_layout(to, from) && !is_lazy(to) && !is_lazy(from)) {
    kernels::copy(data_of(to), static_cast<const std::byte*>(from.const_data_ptr()), to.nbytes());
  } else {
    const at::NoGradGuard no_grad;
    to.copy_(from);
  }
}

// The gradient is element for element what lies, or shall lie, at slot.data.
bool is_plain(const at::Tensor& gradient, const BucketSlot& slot, c10::ScalarType dtype) {
  return slot.data != nullptr && gradient.is_cpu() && gradient.is_contiguous() &&
         gradient.scalar_type() == dtype && gradient.sizes() == slot.parameter.sizes() &&
         !is_lazy(gradient);
}

bool lies_in(const at::Tensor& gradient, const at::Tensor& memory) {
  return gradient.const_data_ptr() == memory.const_data_ptr() && same_layout(gradient, memory);
}

// Nobody but the parameter knows the gradient: another tensor may take its place.
bool is_unknown(const at::Tensor& gradient) {
  return gradient.use_count() == 1 && gradient.storage().use_count() == 1 &&
         !gradient.requires_grad();
}

[[noreturn]] void refuse_change(const BucketSlot& slot, const std::string& now,
                                const std::string& before, const std::string& how) {
  throw Exception({.code = ErrorCode::kInvalidArgument,
                   .text = "the gradient of '" + slot.name + "' is " + now + " but was " + before +
                           " when DistributedOptimizer was made; " + how +
                           " the model before that"});
}

}  // namespace

Bucket::Bucket(std::shared_ptr<Engine> engine, const ReducerOptions& options, Contents contents)
    : engine_(std::move(engine)),
      options_(options),
      reduction_(std::move(contents.reduction)),
      rule_(contents.rule),
      missing_(contents.members.size()),
      dtype_(contents.members.front().parameter.scalar_type()),
      counters_(dtype_, contents.members.size()) {
  for (Member& member : contents.members) {
    slots_.push_back({.parameter = std::move(member.parameter),
                      .accumulator = std::move(member.accumulator),
                      .name = std::move(member.name)});
  }
  if (contents.stream) {
    device_ = std::make_unique<DeviceGradients>(engine_, std::move(contents.stream), reduction_);
  }
  lay_out();
  open_places(true);
}

void Bucket::share_step() {
  std::vector<StepSlot> slots;
  for (const BucketSlot& slot : slots_) {
    slots.push_back({.name = slot.name,
                     .parameter = slot.parameter,
                     .begin = slot.begin,
                     .end = slot.begin + slot.parameter.numel(),
                     .sizes = c10::DimVector(slot.memory.sizes()),
                     .strides = c10::DimVector(slot.memory.strides())});
  }
  host_step_ =
      std::make_unique<HostStep>(engine_, reduction_.name + "/step", reduction_.group, dtype_,
                                 elements_, std::move(slots), options_.share_parameters);
}

// Fresh memory for the gradients and counters; tensors in the old one keep it alive.
void Bucket::lay_out() {
  const std::size_t element_bytes = c10::elementSize(dtype_);
  std::int64_t gradients = 0;
  for (BucketSlot& slot : slots_) {
    slot.begin = gradients;
    if (!slot.by_rows) gradients += padded(slot.parameter.numel(), element_bytes);
  }
  const std::int64_t counters_begin = device_ ? 0 : gradients;
  elements_ = counters_begin + padded(counters_.elements(), element_bytes);
  spec_ = std::make_shared<const RequestSpec>(arena_spec());

  arena_ = unwrap(engine_->allocate_arena(static_cast<std::size_t>(elements_) * element_bytes));
  std::memset(arena_.data, 0, arena_.bytes);  // it may have been another bucket's
  counters_.move_to(arena_.data, counters_begin);
  const at::Tensor memory = device_
                                ? device_->lay_out(gradients, dtype_)
                                : at::from_blob(
                                      arena_.data, {elements_}, [lease = arena_.lease](void*) {},
                                      at::TensorOptions().dtype(dtype_));
  for (BucketSlot& slot : slots_) give_memory(slot, memory);
}

// Of what is in the arena: the gradients and their counters, or on a GPU the counters alone.
RequestSpec Bucket::arena_spec() const {
  const DType dtype = dtype_of(dtype_, reduction_.name);
  RequestSpec spec;
  if (device_) {
    spec.name = reduction_.name + "/used";
    spec.group = reduction_.group;
    spec.tensors = {{dtype, {elements_}}};
  } else {
    spec = reduction_;
    if (dtype != DType::kFloat32) spec.wire_dtype.reset();
    for (const BucketSlot& slot : slots_) {
      spec.tensors.push_back(
          {dtype, slot.by_rows ? std::vector<std::int64_t>{0} : slot.parameter.sizes().vec()});
    }
  }
  spec.in_arena = true;
  spec.arena_bytes = static_cast<std::uint64_t>(elements_) * dtype_bytes(dtype);
  spec.backend = engine_->backend_choice().cpu;  // of the arena
  return spec;
}

// The slot's part of what the gradients lie in.
void Bucket::give_memory(BucketSlot& slot, const at::Tensor& memory) {
  if (slot.by_rows) {
    slot.memory.reset();
    slot.data = nullptr;
    slot.place.reset();
    return;
  }
  const std::vector<std::int64_t> strides = gradient_strides(slot.parameter);
  if (device_) {  // memory of torch's own allocator, which looks for its blocks by their storage
    slot.memory = at::empty({0}, memory.options());
    slot.memory.set_(memory.storage(), slot.begin, slot.parameter.sizes(), strides);
  } else {
    slot.memory = at::from_blob(
        data_of(memory) + static_cast<std::size_t>(slot.begin) * c10::elementSize(dtype_),
        slot.parameter.sizes(), strides, [memory](void*) {}, memory.options());
  }
  slot.data = !device_ && slot.memory.is_contiguous() ? data_of(slot.memory) : nullptr;
  if (slot.place && slot.place->bytes() != slot.memory.nbytes()) slot.place.reset();
  if (slot.place) {
    slot.place->move_to(slot.memory);
  } else if (slot.memory.nbytes() >= kPlaceBytesMin) {
    slot.place = std::make_unique<GradientPlace>(slot.memory, slot.parameter,
                                                 device_ ? nullptr : slot.accumulator.get());
  }
}

// Fresh memory, because a tensor of the user lies where a gradient shall be: that one keeps the old
// memory. Where the user has done so once nothing of his shall lie again.
void Bucket::move_away() {
  std::vector<at::Tensor> old;
  for (BucketSlot& slot : slots_) {
    old.push_back(slot.memory);
    const at::Tensor& gradient = slot.parameter.grad();
    const bool is_gradient = gradient.defined() && gradient.layout() == c10::Layout::Strided &&
                             !slot.by_rows && lies_in(gradient, slot.memory);
    if (slot.place && slot.place->occupied() && !is_gradient) slot.place->give_up();
  }
  lay_out();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    BucketSlot& slot = slots_[i];
    if (!slot.ready || slot.by_rows) continue;
    copy_values(slot.memory, old[i]);
    slot.in_place = false;
  }
}

void Bucket::move_sparse_out() {
  bool moved = false;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].by_rows || !sparse_anywhere(i) || dense_anywhere(i)) continue;
    slots_[i].by_rows = moved = true;
  }
  if (moved) lay_out();
}

void Bucket::take_gradient(std::size_t index) {
  slots_[index].reduced.reset();
  put_in(slots_[index]);
}

void Bucket::put_in(BucketSlot& slot) {
  at::Tensor& gradient = slot.parameter.mutable_grad();
  slot.used = gradient.defined() && !slot.foreign;
  slot.sparse = slot.used && gradient.layout() != c10::Layout::Strided;
  if (slot.sparse && options_.sparse_as_dense) {
    gradient = gradient.to_dense();
    slot.sparse = false;
  }
  const bool dense = slot.used && !slot.sparse;
  if (slot.place) slot.place->learn(dense ? gradient.const_data_ptr() : nullptr);
  slot.in_place = dense && slot.place && lies_in(gradient, slot.memory);
  strays_ = strays_ || (dense && slot.place && !slot.in_place);
  if (!slot.by_rows && !slot.in_place) {
    if (slot.place && slot.place->occupied()) move_away();
    if (dense) {
      copy_in(slot);
    } else {
      fill_with_zeros(slot.memory);
    }
  }
  if (device_) device_->written();
  slot.taken.renew(gradient);
  if (!slot.ready) --missing_;
  slot.ready = true;
}

// This rank's gradient into the memory.
void Bucket::copy_in(const BucketSlot& slot) {
  const at::Tensor& gradient = slot.parameter.grad();
  if (is_plain(gradient, slot, dtype_)) {
    kernels::copy(slot.data, static_cast<const std::byte*>(gradient.const_data_ptr()),
                  gradient.nbytes());
    moved_bytes_ += gradient.nbytes();
    return;
  }
  if (gradient.scalar_type() != slot.memory.scalar_type()) {
    refuse_change(slot, c10::toString(gradient.scalar_type()),
                  c10::toString(slot.memory.scalar_type()), "convert");
  }
  if (gradient.device() != slot.memory.device()) {
    refuse_change(slot, "on " + gradient.device().str(), "on " + slot.memory.device().str(),
                  "move");
  }
  copy_values(slot.memory, gradient);
  moved_bytes_ += slot.memory.nbytes();
}

bool Bucket::is_taken(const BucketSlot& slot) {
  return slot.ready && slot.taken.same(slot.parameter.grad());
}

void Bucket::take_missing() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!is_taken(slots_[i])) take_gradient(i);
  }
}

bool Bucket::knows_accumulator(std::size_t index) const {
  const BucketSlot& slot = slots_[index];
  return !slot.place ||
         slot.accumulator == torch::autograd::impl::try_get_grad_accumulator(slot.parameter);
}

void Bucket::follow(std::size_t index, const GradientAccumulator& accumulator) {
  BucketSlot& slot = slots_[index];
  if (slot.accumulator == accumulator) return;
  slot.accumulator = accumulator;
  if (slot.place && !device_) slot.place->follow(accumulator.get());
}

void Bucket::set_foreign(std::size_t index, bool foreign) {
  BucketSlot& slot = slots_[index];
  if (slot.foreign == foreign) return;
  slot.foreign = foreign;
  if (slot.place) slot.place->set_open(!foreign && !submitted());
  // What a pass has taken before is taken anew: zeros if foreign.
  if (!submitted() && slot.ready) {
    slot.ready = false;
    ++missing_;
  }
}

void Bucket::forget_gradients() {
  CIRANDA_ASSERT(!submitted());
  for (BucketSlot& slot : slots_) {
    slot.taken = TensorStamp();
    slot.reduced.reset();
  }
}

bool Bucket::foreign() const {
  return std::all_of(slots_.begin(), slots_.end(), [](const auto& slot) { return slot.foreign; });
}

bool Bucket::begun() const {
  return std::any_of(slots_.begin(), slots_.end(),
                     [](const auto& slot) { return slot.ready && !slot.foreign; });
}

void Bucket::submit() {
  CIRANDA_ASSERT(complete() && !submitted());
  open_places(false);
  write_counters();
  send(spec_, {});
  if (device_) device_->submit();
}

void Bucket::append_handles(std::vector<Handle>& out) const {
  if (handle_) out.push_back(handle_);
  if (device_ && device_->handle()) out.push_back(device_->handle());
}

void Bucket::submit_step(const HostStep::Step& step) {
  send(step_spec(step_spec_, "/step", step.words),
       [this, update = host_step_->work(step, used_anywhere())](
           std::uint64_t begin, std::uint64_t bytes, std::span<std::byte* const> arena) mutable {
         update(begin, bytes, arena);
         counters_.join(begin, begin + bytes, arena);
       });
}

void Bucket::submit_squares(const HostStep::Step& step) {
  send(step_spec(squares_spec_, "/squares", step.words),
       host_step_->squares_work(step, used_anywhere()));
}

void Bucket::submit_objection(bool squares) {
  send(step_spec(squares ? squares_spec_ : step_spec_, squares ? "/squares" : "/step",
                 "not before the ranks have talked"),
       [](std::uint64_t, std::uint64_t, std::span<std::byte* const>) {});
}

void Bucket::count_step() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (dense_anywhere(i)) host_step_->count(i);
  }
  host_step_->count_for(handle_->joined());
}

void Bucket::take_gradients() {
  CIRANDA_ASSERT(host_step_ && !submitted());
  for (BucketSlot& slot : slots_) {
    if (!is_taken(slot)) put_in(slot);
  }
  open_places(false);
  write_counters();
}

HostStep::Used Bucket::used_anywhere() const {
  return [this](std::size_t slot, std::span<std::byte* const> arena) {
    return counters_.dense_in(arena, slot);
  };
}

// `latest` unless the rule has changed since.
std::shared_ptr<const RequestSpec> Bucket::step_spec(std::shared_ptr<const RequestSpec>& latest,
                                                     const char* suffix,
                                                     const std::string& words) const {
  if (!latest || latest->rule != words) {
    RequestSpec spec = *spec_;
    spec.name += suffix;
    spec.rule = words;
    spec.tensors = {{spec_->tensors[0].dtype, {elements_}}};
    latest = std::make_shared<const RequestSpec>(std::move(spec));
  }
  return latest;
}

void Bucket::send(const std::shared_ptr<const RequestSpec>& spec, decltype(Submission::work) work) {
  Submission submission;
  submission.spec = spec;
  submission.is_checked = spec == checked_;
  submission.arena = arena_.ref;
  submission.work = std::move(work);
  handle_ = unwrap(engine_->submit(std::move(submission)));
  checked_ = spec;
}

void Bucket::publish() {
  if (device_) device_->publish();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    BucketSlot& slot = slots_[i];
    const at::Tensor& gradient = slot.parameter.grad();
    if (slot.foreign || !slot.taken.same_object(gradient)) continue;
    if (slot.by_rows || slot.sparse || !dense_anywhere(i)) continue;
    copy_out(slot);
    slot.taken.renew(gradient);
  }
}

void Bucket::note_reduced() {
  for (BucketSlot& slot : slots_) {
    const at::Tensor& gradient = slot.parameter.grad();
    if (slot.foreign || !slot.taken.same_object(gradient)) continue;
    slot.reduced = std::exchange(slot.taken, TensorStamp());
    slot.reduced->renew(gradient);
  }
}

void Bucket::copy_out(BucketSlot& slot) const {
  at::Tensor& gradient = slot.parameter.mutable_grad();
  const bool dense = gradient.defined() && gradient.layout() == c10::Layout::Strided;
  if (!slot.in_place) {
    // If nobody would notice, p.grad lies in the memory from here on.
    const bool replaceable = !dense || is_unknown(gradient);
    at::Tensor placed = replaceable && slot.place ? slot.place->lend() : at::Tensor();
    if (placed.defined()) {
      gradient = std::move(placed);
    } else if (dense && is_plain(gradient, slot, dtype_)) {
      kernels::copy(data_of(gradient), slot.data, gradient.nbytes());
    } else if (dense && gradient.is_non_overlapping_and_dense()) {
      copy_values(gradient, slot.memory);
    } else {
      gradient = slot.memory.clone();
    }
  }
  mark_written(gradient);
}

void Bucket::reset() {
  handle_ = nullptr;
  if (device_) device_->retire();
  missing_ = slots_.size();
  for (BucketSlot& slot : slots_) slot.ready = slot.used = slot.sparse = slot.in_place = false;
  open_places(true);
}

void Bucket::open_places(bool open) {
  for (BucketSlot& slot : slots_) {
    if (slot.place) slot.place->set_open(open && !slot.foreign);
  }
}

void Bucket::write_counters() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    counters_.write(i, slots_[i].used && !slots_[i].sparse, slots_[i].sparse);
  }
}

}  // namespace ciranda
