#include "torch/served_parameters.h"

#include <ATen/ops/from_blob.h>

#include "torch/error.h"
#include "torch/row_tables.h"
#include "torch/tensor_view.h"

namespace ciranda {
namespace {

std::size_t byte_offset(std::uint64_t table_at, std::int64_t begin, std::size_t element_bytes) {
  return static_cast<std::size_t>(table_at) + static_cast<std::size_t>(begin) * element_bytes;
}

// Keeps `memory` mapped.
at::Tensor tensor_at(std::byte* data, const at::Tensor& like, const MemorySegment& memory) {
  return at::from_blob(
      data, like.sizes(), [kept = memory](void*) {}, at::TensorOptions().dtype(like.scalar_type()));
}

bool can_lie_in_memory(const at::Tensor& parameter) {
  return parameter.is_cpu() && parameter.is_contiguous() && !is_lazy(parameter) &&
         parameter.numel() > 0 && !HostStep::why_immovable(parameter);
}

}  // namespace

void refuse_second_model(const ps::Client& client) {
  if (!client.declared()) return;
  throw Exception({.code = ErrorCode::kUnsupported,
                   .text = "DistributedOptimizer: parameter servers hold the parameters of one "
                           "optimizer, as they were when it was made; make one optimizer of all "
                           "parameters"});
}

ServedParameters::ServedParameters(std::shared_ptr<ps::Client> client, ps::Mode mode, bool apart)
    : client_(std::move(client)), mode_(mode), apart_(apart) {}

void ServedParameters::declare(NamedParameters parameters, std::span<const std::size_t> group_of,
                               std::span<const kernels::UpdateRule> rules) {
  ps::Model model{.mode = mode_, .tables = {}, .row_tables = take_row_tables()};
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto& [name, parameter] = parameters[i];
    const DType dtype =
        dtype_of(parameter.scalar_type(), "DistributedOptimizer: parameter '" + name + "'");
    const std::size_t group = group_of[i];
    std::size_t table = 0;
    while (table < model.tables.size() &&
           (group_of_table_[table] != group || model.tables[table].dtype != dtype)) {
      ++table;
    }
    if (table == model.tables.size()) {
      model.tables.push_back({.dtype = dtype, .rule = rules[group], .slots = {}});
      group_of_table_.push_back(group);
    }
    slots_.push_back({.name = name,
                      .parameter = std::move(parameter),
                      .group = group,
                      .table = table,
                      .number = model.tables[table].slots.size()});
    const at::Tensor& kept = slots_.back().parameter;
    model.tables[table].slots.push_back(
        {.name = std::move(name), .shape = {kept.sizes().begin(), kept.sizes().end()}});
  }
  const std::vector<std::size_t> first = ps::first_slots(model);
  for (Slot& slot : slots_) slot.position = first[slot.table] + slot.number;

  check(client_->declare(
      model, [&](const ps::Layout& layout, std::byte* memory) { fill(layout, memory); }));
  for (Slot& slot : slots_) {
    slot.value = view(slot, client_->segment(), client_->layout().parameters_at(slot.table));
    slot.moved = !apart_ && can_lie_in_memory(slot.parameter);
    if (slot.moved) slot.parameter.set_data(slot.value);
  }
  show();
}

// This worker's parameters, which may become everybody's.
void ServedParameters::fill(const ps::Layout& layout, std::byte* memory) {
  for (const Slot& slot : slots_) {
    const std::int64_t begin = layout.slots(slot.table)[slot.number].begin;
    std::byte* const data = memory + byte_offset(layout.parameters_at(slot.table), begin,
                                                 slot.parameter.element_size());
    assign(tensor_at(data, slot.parameter, {}), slot.parameter.detach());
  }
}

at::Tensor ServedParameters::view(const Slot& slot, const MemorySegment& memory,
                                  std::uint64_t table_at) const {
  const std::int64_t begin = client_->layout().slots(slot.table)[slot.number].begin;
  std::byte* const data =
      memory.data() + byte_offset(table_at, begin, slot.parameter.element_size());
  return tensor_at(data, slot.parameter, memory);
}

at::Tensor ServedParameters::gradient_memory(const Slot& slot) const {
  return view(slot, client_->gradients(), client_->layout().gradients_at(slot.table));
}

void ServedParameters::move_gradients() {
  check(client_->move_gradients());
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
  check(client_->pull());
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
    slot.latest.renew(slot.parameter);
  }
  shown_ = client_->versions();
}

}  // namespace ciranda
