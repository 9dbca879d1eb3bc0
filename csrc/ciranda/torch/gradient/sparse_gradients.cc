#include "ciranda/torch/gradient/sparse_gradients.h"

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "ciranda/torch/collective/collectives.h"
#include "core/base/assert.h"

namespace ciranda {
namespace {

struct Slot {  // of a bucket
  Bucket* bucket = nullptr;
  std::size_t index = 0;
  GradientSlot& get() const { return bucket->slots()[index]; }
};

struct Rows {
  at::Tensor indices;  // {rows, 1}
  at::Tensor values;
};

// Returns the indices and values of a gradient's rows; no rows for an undefined gradient.
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

// Gathers the rows of every rank and puts their sum into p.grad.
void gather_rows(const std::vector<Slot>& slots, const ReducerOptions& options,
                 const Communicator& among) {
  std::vector<at::Tensor> pieces;
  for (const Slot& place : slots) {
    const GradientSlot& slot = place.get();
    const bool travels = slot.sparse || (slot.by_rows && slot.used);  // else it is in slot.memory
    Rows rows = rows_of(travels ? slot.parameter.grad() : at::Tensor(), slot.parameter);
    pieces.push_back(std::move(rows.indices));
    pieces.push_back(std::move(rows.values));
  }
  const std::vector<at::Tensor> gathered =
      allgather_async(among, std::move(pieces), options.name + "/sparse")->wait().tensors;
  CIRANDA_ASSERT(gathered.size() == 2 * slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    GradientSlot& slot = slots[i].get();
    if (slot.foreign) continue;  // this rank's gradient is another optimizer's
    at::Tensor values = gathered[2 * i + 1];
    if (options.op == ReduceOp::kAverage) values.div_(static_cast<double>(among.group->size()));
    const at::Tensor sum =
        at::_sparse_coo_tensor_unsafe(gathered[2 * i].t(), values, slot.parameter.sizes())
            .coalesce();
    at::Tensor& gradient = slot.parameter.mutable_grad();
    if (!slots[i].bucket->dense_anywhere(slots[i].index)) {
      gradient = sum;
    } else if (slot.by_rows) {
      gradient = sum.to_dense();
    } else {
      slot.memory.add_(sum);
      slots[i].bucket->gradients().copy_out(slot);
    }
    slot.taken.renew(slot.parameter.grad());
  }
}

}  // namespace

// Makes one request for each device.
void reduce_sparse(const std::vector<std::unique_ptr<Bucket>>& buckets,
                   const ReducerOptions& options, const Communicator& among) {
  std::vector<Slot> slots;
  for (const auto& bucket : buckets) {
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
    gather_rows({slots.begin(), others}, options, among);
    slots.erase(slots.begin(), others);
  }
  for (const auto& bucket : buckets) bucket->move_sparse_out();
}

}  // namespace ciranda
