#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/base/zero_array.h"
#include "core/plan/step_runs.h"
#include "core/ps/decide/layout.h"
#include "core/ps/decide/model.h"
#include "core/ps/decide/push.h"
#include "core/wire/codec.h"

namespace ciranda::ps {

// One server's pieces of the parameters and of the optimizer's state. It finds the rule for each
// slot of a push, and makes the update. Calls access a worker's memory only if they get it as an
// argument.
//
// Not thread-safe. Never blocks.
class Parameters {
 public:
  // check() must have accepted `model`.
  Parameters(Model model, int servers, int server);
  // Returns false if memory could not be allocated; the object is then unusable.
  bool has_memory() const;

  // Returns the model as it was declared, with the momentum that pushes have brought since.
  const Model& model() const { return model_; }
  void set_mode(const Mode& mode) { model_.mode = mode; }
  const Layout& layout() const { return layout_; }
  int server() const { return server_; }
  std::byte* data() { return values_.data; }
  // Returns the number of steps of each slot, through all tables.
  std::span<const std::int64_t> steps() const { return steps_; }

  // Reads the parameters from a worker's memory, which has layout().memory_bytes().
  void read_from(const std::byte* memory);
  // Writes the parameters into a worker's memory.
  void write_to(std::byte* memory);

  // Returns an error if the push has rules or slots that do not fit the model.
  Status check(const Push& push) const;
  // Allocates the state that the push needs; kSystem: there is not enough memory. Only SGD may lack
  // state: it has none until a push brings momentum. check() has accepted the push.
  Status begin_states(const Push& push);

  // Pushes that are applied as one, in the order of their workers. check() and begin_states() have
  // accepted each.
  struct Update {
    std::span<const Push> pushes;
    // One for each push: laid out as in a worker's memory or, if `packed`, like this server's own
    // arrays.
    std::span<const std::byte* const> gradients;
    bool packed = false;
    double scale = 1.0;           // factor of the gradients' sum
    std::byte* vector = nullptr;  // if set, gradients are added to it, and parameters stay
    std::span<std::byte* const> targets = {};  // memory of workers that get the new parameters
  };
  void update(const Update& update);

  // Copies this server's elements of a state array (an index in kernels::state_arrays) into memory
  // of the table's size.
  void copy_state(std::size_t table, std::size_t array, std::byte* into) const;
  // Does the same for the table's parameters.
  void copy_parameters(std::size_t table, std::byte* into) const;
  // Copies the parameters and state that `part` holds of these pieces. A slot's number of steps is
  // the larger of both. `part` has the same tables, and may be of any number of servers. Returns
  // false if memory could not be allocated.
  bool take_over(const Parameters& part);

  // Writes the steps. arrays() has the rest.
  void save(Writer& out) const;
  // Restores what save() has written, for the same model and server. The caller then fills
  // arrays(). Sets in.error() if the bytes are invalid.
  void restore(Reader& in);
  using Arrays = std::vector<std::span<std::byte>>;
  // Returns the memory of parameters and state, in this order.
  Arrays arrays();

  // Bytes of parameters and state.
  std::uint64_t held_bytes() const;
  struct Traffic {
    std::uint64_t gradient_bytes = 0;   // read
    std::uint64_t parameter_bytes = 0;  // written to workers
  };
  const Traffic& traffic() const { return traffic_; }

 private:
  using Used = std::vector<bool>;
  struct RuleRun : StepRun {
    const kernels::UpdateRule* rule = nullptr;
  };
  std::vector<RuleRun> runs_of(std::size_t table, const Update& update, const Used& used) const;
  void update_piece(const Layout::Piece& piece, const Update& update,
                    std::span<const RuleRun> runs);
  void copy_range(const Layout::Piece& piece, std::int64_t begin, std::int64_t end,
                  std::span<std::byte* const> targets);
  void copy_table(std::size_t table, const std::byte* from, std::byte* into) const;
  std::size_t element_bytes(std::size_t table) const {
    return dtype_bytes(model_.tables[table].dtype);
  }

  Model model_;
  const Layout layout_;
  const int server_;
  const std::vector<std::size_t> first_slot_;  // by table, see first_slots()
  std::vector<std::int64_t> steps_;
  ZeroArray values_;               // of layout().share_bytes()
  std::vector<ZeroArray> states_;  // as many as the rule with the most state needs
  Traffic traffic_;
};

}  // namespace ciranda::ps
