#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ciranda/torch/step/reducer.h"
#include "ciranda/torch/tensor/tensor_stamp.h"
#include "core/kernels/update_rule.h"
#include "core/ps/io/client.h"

namespace ciranda {

// A model's parameters in a job with parameter servers. They lie in the memory that the servers
// write to, where a parameter is contiguous, on the CPU, and nobody else looks at its memory;
// others are copied from there after each answer.
//
// What the servers write replaces what the program has written: a parameter that was written to,
// moved or converted since the latest answer is refused, by its version, which `.data` hides.
//
// Not thread-safe. Throws Exception.
class ServedParameters {
 public:
  // `apart`: the servers write while the program trains, so no parameter lies in their memory.
  ServedParameters(std::shared_ptr<ps::Client> client, ps::Mode mode, bool apart);

  // Once. `rules`: of the parameters' groups; group_of[i] is that of parameter i. The parameters
  // are those of all workers by then: the first worker's, or what has become of them. Blocking.
  void declare(NamedParameters parameters, std::span<const std::size_t> group_of,
               std::span<const kernels::UpdateRule> rules);

  struct Slot {
    std::string name;
    at::Tensor parameter;
    std::size_t group = 0;
    std::size_t table = 0;     // in the layout, and the number there
    std::size_t number = 0;    // among the table's slots
    std::size_t position = 0;  // among all slots, as Push::used counts
    at::Tensor value = {};     // in the memory that the servers write to; contiguous
    bool moved = false;        // the parameter itself lies there
    TensorStamp latest = {};   // the parameter as the latest answer has left it
  };
  const std::vector<Slot>& slots() const { return slots_; }  // by parameter
  std::size_t tables() const { return tables_; }
  // Neighbours in a table, of one group.
  struct Run {
    std::size_t table = 0;
    std::size_t group = 0;
    std::uint32_t slots = 0;
  };
  const std::vector<Run>& runs() const { return runs_; }  // of all tables, in their order
  // Where the gradient of a slot shall lie when it is pushed: contiguous, on lines of its own.
  at::Tensor gradient_memory(const Slot& slot) const;
  // Gradients shall lie elsewhere from here on: the program has kept tensors where they lay.
  void move_gradients();
  // The versions of the parameters that the program sees, by server.
  std::span<const std::uint64_t> versions() const { return versions_; }

  // What the program must not have done since show(), as a sentence in an Exception.
  void refuse_changes() const;
  // The program sees the newest. Throws as refuse_changes() does. Blocking.
  void pull();
  // What the program sees is what it shall be: a step of its own.
  void keep();
  // After an answer: the program sees what the servers have written.
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

// kUnsupported where the servers have a model already.
void refuse_second_model(const ps::Client& client);

}  // namespace ciranda
