#include "ciranda/torch/gradient/gradient_buffer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "ciranda/torch/gradient/digest.h"
#include "ciranda/torch/gradient/rank_graph.h"
#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/tensor_view.h"
#include "core/base/assert.h"
#include "core/kernels/reduce.h"

namespace ciranda {
namespace {

constexpr std::int64_t kSlotBytes = 64;

// Smaller gradients cost no more to copy than to have born in their place.
constexpr std::size_t kPlaceBytesMin = 4096;

// Returns the strides of a gradient for `parameter`: the parameter's if it covers its memory
// without holes (contiguous, channels_last, transposed), else contiguous ones. This is autograd's
// layout contract.
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

// Returns a tensor of the parameter's shape over `memory` from element `begin` on.
at::Tensor part_of(const at::Tensor& memory, std::int64_t begin, const at::Tensor& parameter) {
  const std::vector<std::int64_t> strides = gradient_strides(parameter);
  if (memory.is_cpu()) {  // a separate storage, which keeps the memory alive
    return at::from_blob(
        data_of(memory) + static_cast<std::size_t>(begin) * memory.itemsize(), parameter.sizes(),
        strides, [memory](void*) {}, memory.options());
  }
  // GPU memory is from torch's own allocator, which looks for its blocks by their storage.
  at::Tensor part = at::empty({0}, memory.options());
  part.set_(memory.storage(), begin, parameter.sizes(), strides);
  return part;
}

// Returns true if both have the same elements in the same order in memory.
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

// Returns true if the gradient has, element for element, the layout of the memory at slot.data.
bool is_plain(const at::Tensor& gradient, const GradientSlot& slot, c10::ScalarType dtype) {
  return slot.data != nullptr && gradient.is_cpu() && gradient.is_contiguous() &&
         gradient.scalar_type() == dtype && gradient.sizes() == slot.parameter.sizes() &&
         !is_lazy(gradient);
}

bool lies_in(const at::Tensor& gradient, const at::Tensor& memory) {
  return gradient.const_data_ptr() == memory.const_data_ptr() && same_layout(gradient, memory);
}

// Returns true if only the parameter knows the gradient, so that another tensor may take its place.
bool is_unknown(const at::Tensor& gradient) {
  return gradient.use_count() == 1 && gradient.storage().use_count() == 1 &&
         !gradient.requires_grad();
}

// Returns a digest of a tensor's memory, to tell whether it is written to; 0 if the memory is not
// in one piece on the CPU.
std::uint64_t digest(const at::Tensor& tensor) {
  const bool readable = tensor.defined() && tensor.layout() == c10::Layout::Strided &&
                        tensor.is_cpu() && tensor.is_non_overlapping_and_dense();
  if (!readable) return 0;
  return digest_of({static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
}

[[noreturn]] void refuse_change(const GradientSlot& slot, const std::string& now,
                                const std::string& before, const std::string& how) {
  throw Exception({.code = ErrorCode::kInvalidArgument,
                   .text = "the gradient of '" + slot.name + "' is " + now + " but was " + before +
                           " when DistributedOptimizer was made; " + how +
                           " the model before that"});
}

}  // namespace

std::int64_t padded_to_lines(std::int64_t elements, std::size_t element_bytes) {
  const std::int64_t unit = kSlotBytes / static_cast<std::int64_t>(element_bytes);
  return (elements + unit - 1) / unit * unit;
}

GradientBuffer::GradientBuffer(std::vector<Member> members, bool sparse_as_dense,
                               GradientMemory& memory)
    : sparse_as_dense_(sparse_as_dense),
      memory_(memory),
      dtype_(members.front().parameter.scalar_type()),
      missing_(members.size()) {
  for (Member& member : members) {
    slots_.push_back({.parameter = std::move(member.parameter),
                      .accumulator = std::move(member.accumulator),
                      .name = std::move(member.name)});
  }
  lay_out();
  open_places(true);
}

// Lays the slots out in fresh memory. A tensor in the old memory keeps that alive.
void GradientBuffer::lay_out() {
  std::int64_t elements = 0;
  std::vector<std::vector<std::int64_t>> shapes;
  for (GradientSlot& slot : slots_) {
    slot.begin = elements;
    if (!slot.by_rows) {
      elements += padded_to_lines(slot.parameter.numel(), c10::elementSize(dtype_));
    }
    shapes.push_back(slot.by_rows ? std::vector<std::int64_t>{0} : slot.parameter.sizes().vec());
  }
  const at::Tensor memory = memory_.lay_out(elements, shapes);
  for (GradientSlot& slot : slots_) give_memory(slot, memory);
}

// Gives the slot its part of the buffer's memory.
void GradientBuffer::give_memory(GradientSlot& slot, const at::Tensor& memory) {
  if (slot.by_rows) {
    slot.memory.reset();
    slot.data = nullptr;
    slot.place.reset();
    return;
  }
  slot.memory = part_of(memory, slot.begin, slot.parameter);
  const bool on_cpu = slot.memory.is_cpu();
  slot.data = on_cpu && slot.memory.is_contiguous() ? data_of(slot.memory) : nullptr;
  if (slot.place && slot.place->bytes() != slot.memory.nbytes()) slot.place.reset();
  if (slot.place) {
    slot.place->move_to(slot.memory);
  } else if (slot.memory.nbytes() >= kPlaceBytesMin) {
    slot.place = std::make_unique<GradientPlace>(slot.memory, slot.parameter,
                                                 on_cpu ? slot.accumulator.get() : nullptr);
  }
}

void GradientBuffer::move_away() {
  std::vector<at::Tensor> old;
  for (GradientSlot& slot : slots_) {
    old.push_back(slot.memory);
    const at::Tensor& gradient = slot.parameter.grad();
    const bool is_gradient = gradient.defined() && gradient.layout() == c10::Layout::Strided &&
                             !slot.by_rows && lies_in(gradient, slot.memory);
    if (slot.place && slot.place->occupied() && !is_gradient) slot.place->give_up();
  }
  lay_out();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    GradientSlot& slot = slots_[i];
    if (!slot.ready || slot.by_rows) continue;
    copy_values(slot.memory, old[i]);
    slot.in_place = false;
  }
}

void GradientBuffer::move_rows_out(const std::function<bool(std::size_t)>& only_rows) {
  bool moved = false;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].by_rows || !only_rows(i)) continue;
    slots_[i].by_rows = moved = true;
  }
  if (moved) lay_out();
}

void GradientBuffer::take_gradient(std::size_t index) {
  CIRANDA_ASSERT(index < slots_.size());
  slots_[index].reduced.reset();
  put_in(slots_[index]);
}

void GradientBuffer::put_in(GradientSlot& slot) {
  at::Tensor& gradient = slot.parameter.mutable_grad();
  slot.used = gradient.defined() && !slot.foreign;
  slot.sparse = slot.used && gradient.layout() != c10::Layout::Strided;
  if (slot.sparse && sparse_as_dense_) {
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
  memory_.written();
  slot.taken.renew(gradient);
  CIRANDA_ASSERT(slot.ready || missing_ > 0);
  if (!slot.ready) --missing_;
  slot.ready = true;
}

// Copies this rank's gradient into the slot's memory.
void GradientBuffer::copy_in(const GradientSlot& slot) {
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

bool GradientBuffer::is_taken(const GradientSlot& slot) {
  return slot.ready && slot.taken.same(slot.parameter.grad());
}

void GradientBuffer::remember_contents(std::size_t index) {
  slots_[index].contents = digest(slots_[index].parameter.grad());
}

bool GradientBuffer::release_changed() {
  bool changed = false;
  for (GradientSlot& slot : slots_) {
    if (!slot.ready || slot.foreign) continue;
    const at::Tensor& gradient = slot.parameter.grad();
    if (is_taken(slot) && slot.contents == digest(gradient)) continue;
    slot.ready = false;
    ++missing_;
    changed = true;
  }
  return changed;
}

const GradientSlot* GradientBuffer::written_since_taken() const {
  for (const GradientSlot& slot : slots_) {
    const at::Tensor& gradient = slot.parameter.grad();
    if (slot.ready && !slot.foreign && slot.taken.same_object(gradient) &&
        !slot.taken.same(gradient)) {
      return &slot;
    }
  }
  return nullptr;
}

void GradientBuffer::take_new_gradients() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!is_taken(slots_[i])) take_gradient(i);
  }
}

void GradientBuffer::take_unreduced_gradients() {
  for (GradientSlot& slot : slots_) {
    if (!is_taken(slot)) put_in(slot);
  }
}

bool GradientBuffer::knows_accumulator(std::size_t index) const {
  const GradientSlot& slot = slots_[index];
  return !slot.place ||
         slot.accumulator == torch::autograd::impl::try_get_grad_accumulator(slot.parameter);
}

void GradientBuffer::attach(std::size_t index, const GradientAccumulator& accumulator) {
  GradientSlot& slot = slots_[index];
  if (slot.accumulator == accumulator) return;
  slot.accumulator = accumulator;
  if (slot.place && slot.memory.is_cpu()) slot.place->attach(accumulator.get());
}

void GradientBuffer::set_foreign(std::size_t index, bool foreign, bool in_flight) {
  GradientSlot& slot = slots_[index];
  if (slot.foreign == foreign) return;
  slot.foreign = foreign;
  if (slot.place) slot.place->set_open(!foreign && !in_flight);
  // A slot that a pass has taken is taken anew, as zeros if foreign.
  if (!in_flight && slot.ready) {
    slot.ready = false;
    ++missing_;
  }
}

void GradientBuffer::forget_gradients() {
  for (GradientSlot& slot : slots_) {
    slot.taken = TensorStamp();
    slot.reduced.reset();
  }
}

bool GradientBuffer::foreign() const {
  return std::all_of(slots_.begin(), slots_.end(), [](const auto& slot) { return slot.foreign; });
}

bool GradientBuffer::begun() const {
  return std::any_of(slots_.begin(), slots_.end(),
                     [](const auto& slot) { return slot.ready && !slot.foreign; });
}

void GradientBuffer::write_back(const std::function<bool(std::size_t)>& wanted) {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    GradientSlot& slot = slots_[i];
    const at::Tensor& gradient = slot.parameter.grad();
    if (slot.foreign || !slot.taken.same_object(gradient)) continue;
    if (slot.by_rows || slot.sparse || !wanted(i)) continue;
    copy_out(slot);
    slot.taken.renew(gradient);
  }
}

void GradientBuffer::note_reduced() {
  for (GradientSlot& slot : slots_) {
    const at::Tensor& gradient = slot.parameter.grad();
    if (slot.foreign || !slot.taken.same_object(gradient)) continue;
    CIRANDA_ASSERT(slot.ready && !slot.reduced);  // I15: it was taken for this reduction
    slot.reduced = std::exchange(slot.taken, TensorStamp());
    slot.reduced->renew(gradient);
  }
}

void GradientBuffer::copy_out(GradientSlot& slot) const {
  CIRANDA_ASSERT(!slot.by_rows);
  at::Tensor& gradient = slot.parameter.mutable_grad();
  const bool dense = gradient.defined() && gradient.layout() == c10::Layout::Strided;
  if (!slot.in_place) {
    // The memory becomes p.grad if nobody would notice.
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
  if (gradient.requires_grad()) refuse_derivatives_in_step(gradient, slot.name);
}

void GradientBuffer::reset() {
  missing_ = slots_.size();
  for (GradientSlot& slot : slots_) slot.ready = slot.used = slot.sparse = slot.in_place = false;
  open_places(true);
}

void GradientBuffer::open_places(bool open) {
  for (GradientSlot& slot : slots_) {
    if (slot.place) slot.place->set_open(open && !slot.foreign);
  }
}

}  // namespace ciranda
