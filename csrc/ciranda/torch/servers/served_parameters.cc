#include "ciranda/torch/servers/served_parameters.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>

#include "ciranda/torch/process/row_tables.h"
#include "ciranda/torch/step/shared_step.h"
#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/tensor_view.h"
#include "core/base/assert.h"

namespace ciranda {
namespace {

std::size_t byte_offset(std::uint64_t table_at, std::int64_t begin, std::size_t element_bytes) {
  return static_cast<std::size_t>(table_at) + static_cast<std::size_t>(begin) * element_bytes;
}

// Returns a tensor at `data` that keeps `memory` mapped.
at::Tensor tensor_at(std::byte* data, const at::Tensor& like, const MemorySegment& memory) {
  return at::from_blob(
      data, like.sizes(), [kept = memory](void*) {}, at::TensorOptions().dtype(like.scalar_type()));
}

// Returns true if parameters of these rules may lie in one table.
bool keeps_the_same(const kernels::UpdateRule& one, const kernels::UpdateRule& other) {
  const auto arrays = kernels::state_arrays(one);
  return one.kind == other.kind && arrays.data() == kernels::state_arrays(other).data() &&
         arrays.size() == kernels::state_arrays(other).size() &&
         one.initial_accumulator_value == other.initial_accumulator_value;
}

struct MemoryRange {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
};
MemoryRange range_of(const at::Tensor& tensor) {
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto* begin = static_cast<const std::byte*>(tensor.const_data_ptr());
  return {begin, begin + static_cast<std::size_t>(last + 1) * tensor.itemsize()};
}

// Takes two tensors with overlapping memory ranges. Returns true if they have an element in common,
// which two columns of a matrix have not.
bool overlap(const at::Tensor& one, const at::Tensor& other) {
  if (one.device() != other.device()) return false;
  const bool dense = one.is_non_overlapping_and_dense() && other.is_non_overlapping_and_dense();
  const bool apart = at::has_internal_overlap(one) != at::MemOverlap::Yes &&
                     at::has_internal_overlap(other) != at::MemOverlap::Yes;
  if (dense || !apart || one.element_size() != other.element_size()) return true;
  const MemoryRange a = range_of(one);
  const MemoryRange b = range_of(other);
  const auto size = static_cast<std::int64_t>(one.element_size());
  const at::Tensor marks = at::zeros({(std::max(a.end, b.end) - a.begin) / size}, at::kBool);
  marks.as_strided(one.sizes(), one.strides(), 0).fill_(true);
  return marks.as_strided(other.sizes(), other.strides(), (b.begin - a.begin) / size)
      .any()
      .item<bool>();
}

bool can_lie_in_memory(const at::Tensor& parameter) {
  return parameter.is_cpu() && parameter.is_contiguous() && !is_lazy(parameter) &&
         parameter.numel() > 0 && SharedStep::can_move(parameter);
}

}  // namespace

void refuse_second_model(const ps::Client& client) {
  if (!client.parameters().declared()) return;
  throw Exception(
      {.code = ErrorCode::kUnsupported,
       .text = "DistributedOptimizer: parameter servers hold the parameters of one optimizer, and "
               "this process has made one already; make one optimizer of all parameters"});
}

ServedParameters::ServedParameters(std::shared_ptr<ps::Client> client, ps::Mode mode, bool apart)
    : client_(std::move(client)), mode_(mode), apart_(apart) {}

void ServedParameters::declare(NamedParameters parameters, std::span<const std::size_t> group_of,
                               std::span<const kernels::UpdateRule> rules) {
  CIRANDA_ASSERT(group_of.size() == parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    slots_.push_back({.name = std::move(parameters[i].first),
                      .parameter = std::move(parameters[i].second),
                      .group = group_of[i]});
  }
  refuse_overlaps();
  const ps::Model model = model_of(rules);
  check(client_->parameters().declare(
      model, [&](const ps::Layout& layout, std::byte* memory) { fill(layout, memory); }));
  for (Slot& slot : slots_) {
    slot.value = view(slot, client_->parameters().segment(),
                      client_->parameters().layout().parameters_at(slot.table));
    slot.moved = !apart_ && can_lie_in_memory(slot.parameter);
    if (slot.moved) slot.parameter.set_data(slot.value);
  }
  show();
}

// Makes the model from the slots. A table has one dtype, and rules with the same state. Its slots
// are sorted by group, so that a push sends few rules.
ps::Model ServedParameters::model_of(std::span<const kernels::UpdateRule> rules) {
  ps::Model model{.mode = mode_, .tables = {}, .row_tables = take_row_tables()};
  std::vector<Slot*> by_group;
  for (Slot& slot : slots_) by_group.push_back(&slot);
  std::stable_sort(by_group.begin(), by_group.end(),
                   [](const Slot* one, const Slot* other) { return one->group < other->group; });
  for (Slot* slot : by_group) {
    CIRANDA_ASSERT(slot->group < rules.size());
    const DType dtype = dtype_of(slot->parameter.scalar_type(),
                                 "DistributedOptimizer: parameter '" + slot->name + "'");
    const kernels::UpdateRule& rule = rules[slot->group];
    const auto table =
        std::find_if(model.tables.begin(), model.tables.end(), [&](const ps::Table& each) {
          return each.dtype == dtype && keeps_the_same(each.rule, rule);
        });
    slot->table = static_cast<std::size_t>(table - model.tables.begin());
    if (table == model.tables.end()) {
      model.tables.push_back({.dtype = dtype, .rule = rule, .slots = {}});
    }
    std::vector<ps::Slot>& slots = model.tables[slot->table].slots;
    slot->number = slots.size();
    slots.push_back({.name = slot->name,
                     .shape = {slot->parameter.sizes().begin(), slot->parameter.sizes().end()}});
    const auto same = std::find_if(runs_.begin(), runs_.end(), [&](const Run& run) {
      return run.table == slot->table && run.group == slot->group;
    });
    if (same == runs_.end()) {
      runs_.push_back({.table = slot->table, .group = slot->group, .slots = 1});
    } else {
      ++same->slots;
    }
  }
  std::stable_sort(runs_.begin(), runs_.end(),
                   [](const Run& one, const Run& other) { return one.table < other.table; });
  tables_ = model.tables.size();
  const std::vector<std::size_t> first = ps::first_slots(model);
  for (Slot& slot : slots_) {
    slot.position = first[slot.table] + slot.number;
    CIRANDA_ASSERT(slot.position < slots_.size());
  }
  return model;
}

// Throws if two parameters overlap: the servers would update each on its own.
void ServedParameters::refuse_overlaps() const {
  std::vector<std::pair<const Slot*, MemoryRange>> all;
  for (const Slot& slot : slots_) {
    if (slot.parameter.has_storage() && slot.parameter.numel() > 0) {
      all.emplace_back(&slot, range_of(slot.parameter));
    }
  }
  std::sort(all.begin(), all.end(), [](const auto& one, const auto& other) {
    return std::less<>()(one.second.begin, other.second.begin);
  });
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size(); ++j) {
      if (!std::less<>()(all[j].second.begin, all[i].second.end)) break;
      if (!overlap(all[i].first->parameter, all[j].first->parameter)) continue;
      throw Exception({.code = ErrorCode::kInvalidArgument,
                       .text = "DistributedOptimizer: parameters '" + all[i].first->name +
                               "' and '" + all[j].first->name +
                               "' overlap in memory, but servers hold each parameter by itself; "
                               "make them one parameter"});
    }
  }
}

// Writes this worker's parameters into its memory. The servers begin with worker 0's.
void ServedParameters::fill(const ps::Layout& layout, std::byte* memory) {
  for (const Slot& slot : slots_) {
    const std::int64_t begin = layout.slots(slot.table)[slot.number].begin;
    std::byte* const data =
        memory + byte_offset(layout.parameters_at(slot.table), begin, slot.parameter.itemsize());
    assign(tensor_at(data, slot.parameter, {}), slot.parameter.detach());
  }
}

at::Tensor ServedParameters::view(const Slot& slot, const MemorySegment& memory,
                                  std::uint64_t table_at) const {
  const std::int64_t begin = client_->parameters().layout().slots(slot.table)[slot.number].begin;
  std::byte* const data = memory.data() + byte_offset(table_at, begin, slot.parameter.itemsize());
  return tensor_at(data, slot.parameter, memory);
}

at::Tensor ServedParameters::gradient_memory(const Slot& slot) const {
  return view(slot, client_->parameters().gradients(),
              client_->parameters().layout().gradients_at(slot.table));
}

void ServedParameters::move_gradients() {
  check(client_->parameters().move_gradients());
}

void ServedParameters::refuse_changes() const {
  for (const Slot& slot : slots_) {
    if (slot.latest.same(slot.parameter)) continue;
    throw Exception(
        {.code = ErrorCode::kInvalidArgument,
         .text = "DistributedOptimizer: parameter '" + slot.name +
                 "' was written to, moved or converted outside of step(), and the servers, which "
                 "hold the parameters, do not see that; do it before DistributedOptimizer is made, "
                 "on rank 0"});
  }
}

void ServedParameters::pull() {
  refuse_changes();
  check(client_->parameters().pull());
  show();
}

void ServedParameters::keep() {
  for (Slot& slot : slots_) slot.latest.renew(slot.parameter);
}

void ServedParameters::show() {
  for (Slot& slot : slots_) {
    if (slot.moved) {
      mark_written(slot.parameter);
    } else {
      assign(slot.parameter.detach(), slot.value);
    }
  }
  keep();  // after all writes: parameters in one memory share its version counter
  versions_ = client_->parameters().versions();
}

}  // namespace ciranda
