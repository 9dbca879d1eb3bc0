#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ciranda/torch/step/step_types.h"
#include "ciranda/torch/tensor/tensor_stamp.h"
#include "core/kernels/update_rule.h"
#include "core/ps/io/client.h"

namespace ciranda {

// A model's parameters in a job with parameter servers. A parameter lies in the memory that the
// servers write to if it is contiguous, on the CPU, and nobody else looks at its memory. The values
// of other parameters are copied from there after each answer.
//
// The servers overwrite what the program writes. Therefore a parameter is refused if it was written
// to, moved or converted since the latest answer. Its version counter shows a write; a write
// through `.data` is not noticed.
//
// Not thread-safe. Throws Exception.
class ServedParameters {
 public:
  // `apart`: the servers write while the program trains, so no parameter may lie in that memory.
  ServedParameters(std::shared_ptr<ps::Client> client, ps::Mode mode, bool apart);

  // Called once. `rules` has one rule for each parameter group; parameter i is in group
  // group_of[i]. Afterwards the parameters have the servers' values, which began with those of
  // worker 0. Blocks.
  void declare(NamedParameters parameters, std::span<const std::size_t> group_of,
               std::span<const kernels::UpdateRule> rules);

  struct Slot {
    std::string name;
    at::Tensor parameter;
    std::size_t group = 0;
    std::size_t table = 0;     // in the layout
    std::size_t number = 0;    // among the table's slots
    std::size_t position = 0;  // among all slots, as Push::used counts
    at::Tensor value = {};     // in the memory that the servers write to; contiguous
    bool moved = false;        // the parameter itself lies in that memory
    TensorStamp latest = {};   // the parameter as the latest answer left it
  };
  const std::vector<Slot>& slots() const { return slots_; }  // by parameter
  std::size_t tables() const { return tables_; }
  // Neighbouring slots of a table, of one parameter group.
  struct Run {
    std::size_t table = 0;
    std::size_t group = 0;
    std::uint32_t slots = 0;
  };
  const std::vector<Run>& runs() const { return runs_; }  // of all tables, in the tables' order
  // Returns the memory in which a slot's gradient has to lie for a push: contiguous, on cache lines
  // that no other slot uses.
  at::Tensor gradient_memory(const Slot& slot) const;
  // Replaces the gradients' memory with fresh memory, because the program has kept tensors in it.
  void move_gradients();
  // Returns, by server, the versions of the parameters that the program sees.
  std::span<const std::uint64_t> versions() const { return versions_; }

  // Throws kInvalidArgument if the program has changed a parameter since show() or keep().
  void refuse_changes() const;
  // Fetches the newest parameters and shows them. Throws what refuse_changes() throws. Blocks.
  void pull();
  // Accepts the parameters as they are now, after a step that this worker has made itself.
  void keep();
  // Called after an answer: gives the parameters the values that the servers have written.
  void show();

 private:
  void refuse_overlaps() const;
  ps::Model model_of(std::span<const kernels::UpdateRule> rules);
  at::Tensor view(const Slot& slot, const MemorySegment& memory, std::uint64_t table_at) const;
  void fill(const ps::Layout& layout, std::byte* memory);

  const std::shared_ptr<ps::Client> client_;
  const ps::Mode mode_;
  const bool apart_;
  std::vector<Slot> slots_;
  std::size_t tables_ = 0;
  std::vector<Run> runs_;
  std::vector<std::uint64_t> versions_;
};

// Throws kUnsupported if this process has declared a model already.
void refuse_second_model(const ps::Client& client);

}  // namespace ciranda
