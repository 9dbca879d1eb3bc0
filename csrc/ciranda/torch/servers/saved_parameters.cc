#include "ciranda/torch/servers/saved_parameters.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/tensor_view.h"
#include "core/ps/io/checkpoint_reader.h"

namespace ciranda {
namespace {

// Returns an uninitialized tensor for all elements of a table; the parameters are parts of it.
at::Tensor table_tensor(const ps::Shard& shard, std::size_t table) {
  return at::empty({shard.layout().elements(table)},
                   at::TensorOptions().dtype(scalar_type(shard.model().tables[table].dtype)));
}

}  // namespace

OptimizerState state_of(const kernels::UpdateRule& rule, std::int64_t step,
                        const std::function<at::Tensor(std::size_t array)>& array) {
  const kernels::RuleFacts& facts = kernels::facts_of(rule.kind);
  if (step == 0 && !facts.has_initial_state) return {};
  OptimizerState state;
  if (facts.has_step) {
    state.emplace_back("step", at::scalar_tensor(static_cast<double>(step)));
  }
  const auto arrays = kernels::state_arrays(rule);
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    at::Tensor value = array(i);
    if (step == 0) value.fill_(kernels::initial_state(rule));
    state.emplace_back(std::string(kernels::torch_name(arrays[i])), std::move(value));
  }
  return state;
}

std::vector<SavedParameter> read_checkpoint(const std::string& path) {
  const ps::CheckpointReader reader = unwrap(ps::CheckpointReader::open(path));
  const std::unique_ptr<ps::Shard> all = unwrap(reader.share(0, 1, 1));
  const ps::Model& model = all->model();
  std::vector<SavedParameter> saved;
  for (std::size_t table = 0; table < model.tables.size(); ++table) {
    const ps::Table& one = model.tables[table];
    const at::Tensor values = table_tensor(*all, table);
    all->parameters().copy_parameters(table, data_of(values));
    std::vector<at::Tensor> arrays;
    for (std::size_t i = 0; i < kernels::state_arrays(one.rule).size(); ++i) {
      arrays.push_back(table_tensor(*all, table));
      all->parameters().copy_state(table, i, data_of(arrays.back()));
    }
    const std::size_t first = ps::first_slots(model)[table];
    for (std::size_t slot = 0; slot < one.slots.size(); ++slot) {
      const ps::Layout::Place place = all->layout().slots(table)[slot];
      const at::IntArrayRef shape = one.slots[slot].shape;
      const auto part = [&](const at::Tensor& whole) {
        return whole.slice(0, place.begin, place.begin + c10::multiply_integers(shape))
            .view(shape)
            .clone();
      };
      saved.push_back({.name = one.slots[slot].name,
                       .value = part(values),
                       .state = state_of(one.rule, all->parameters().steps()[first + slot],
                                         [&](std::size_t array) { return part(arrays[array]); }),
                       .rule = one.rule});
    }
  }
  return saved;
}

}  // namespace ciranda
