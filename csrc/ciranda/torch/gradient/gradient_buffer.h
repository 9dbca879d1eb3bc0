#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ciranda/torch/gradient/gradient_owners.h"
#include "ciranda/torch/gradient/gradient_place.h"
#include "ciranda/torch/tensor/tensor_stamp.h"

namespace ciranda {

// A parameter's part of a buffer. The members that are read for each gradient come first, in two
// cache lines.
struct alignas(64) GradientSlot {
  at::Tensor parameter;
  // The gradient's memory in the buffer, with the parameter's shape, dtype and strides. The user
  // never gets this tensor. Undefined if `by_rows`.
  at::Tensor memory = {};
  // First byte of the memory; null if the memory is not contiguous or not on the CPU.
  std::byte* data = nullptr;
  // Lets p.grad lie in the memory; null for small gradients.
  std::unique_ptr<GradientPlace> place = nullptr;
  // Gradients of this parameter were sparse, so it has no memory in the buffer.
  bool by_rows = false;
  // Another optimizer reduces the gradient: the slot holds zeros, and p.grad is left alone.
  bool foreign = false;
  // This rank has put its gradient into the memory in this step, or zeros if `used` is false.
  bool ready = false;
  bool used = false;
  bool sparse = false;     // the gradient of this step is sparse
  bool in_place = false;   // p.grad lies in the memory; if not, the result is copied to p.grad
  TensorStamp taken = {};  // the p.grad that was put into the memory
  // The p.grad that the latest reduction has left, until a new gradient is taken.
  std::optional<TensorStamp> reduced = {};
  std::int64_t begin = 0;           // start in the buffer, in elements
  GradientAccumulator accumulator;  // the parameter itself holds only a weak reference
  std::string name;
  std::uint64_t contents = 0;  // digest by remember_contents()
};

// The memory in which the gradients of a buffer lie.
class GradientMemory {
 public:
  virtual ~GradientMemory() = default;
  // Returns fresh, zeroed memory for `elements` elements, in one dimension. A tensor in the old
  // memory keeps that alive. `shapes` has the shape of each slot; {0} for a slot that is `by_rows`.
  virtual at::Tensor lay_out(std::int64_t elements,
                             const std::vector<std::vector<std::int64_t>>& shapes) = 0;
  // Records that the calling thread has written to the memory, or has queued a write on its current
  // stream of a GPU.
  virtual void written() = 0;
};

// Gradients of some parameters, one behind the other in one piece of memory. A large p.grad lies
// there itself, so that nothing is packed or unpacked. A small p.grad, and one with memory that
// belongs to the user in any way, is copied in, and the result is copied back into it. Sparse
// gradients stay in p.grad.
//
// Not thread-safe. Throws Exception.
class GradientBuffer {
 public:
  struct Member {
    std::string name;
    at::Tensor parameter;
    GradientAccumulator accumulator;
  };
  // `members`: at least one; all dense, of one dtype and on one device. `memory` must outlive the
  // buffer.
  GradientBuffer(std::vector<Member> members, bool sparse_as_dense, GradientMemory& memory);

  std::vector<GradientSlot>& slots() { return slots_; }
  const std::vector<GradientSlot>& slots() const { return slots_; }

  // Puts this rank's gradient of slot `index` into the buffer. A gradient that was born there or
  // accumulated in place is not moved; any other is copied once. An undefined gradient counts as
  // zeros. May be repeated until the places are closed.
  void take_gradient(std::size_t index);
  // Takes the gradients of slots that have none in the buffer or that have another p.grad now.
  void take_new_gradients();
  // Same as take_new_gradients(), but reduced gradients stay reduced.
  void take_unreduced_gradients();
  bool complete() const { return missing_ == 0; }  // every slot is ready
  bool begun() const;                              // a slot that is not foreign is ready
  // Forgets which gradients were taken and which are reduced, because the user discards them.
  void forget_gradients();
  // Sets whether backward may use the memory.
  void open_places(bool open);
  // Prepares the buffer for the next step.
  void reset();
  // Stores a digest of the gradient that was taken, for release_changed().
  void remember_contents(std::size_t index);
  // Returns true if some p.grad was written since remember_contents(), also past autograd's version
  // counter. Such slots are no longer ready.
  bool release_changed();
  // Returns a slot if its p.grad was written since it was taken, according to its version; else
  // null.
  const GradientSlot* written_since_taken() const;

  // Returns true if, since the last call, a gradient with a place was not born there.
  // knows_accumulator() may tell why.
  bool had_strays() { return std::exchange(strays_, false); }
  // Returns true if gradients of slot `index` can be born in their place; attach() makes it so.
  bool knows_accumulator(std::size_t index) const;
  // Replaces the gradient accumulator of slot `index`.
  void attach(std::size_t index, const GradientAccumulator& accumulator);
  // Sets whether another optimizer reduces the slot. `in_flight`: a reduction runs, so a gradient
  // that was taken stays.
  void set_foreign(std::size_t index, bool foreign, bool in_flight);
  bool foreign() const;  // all slots are foreign

  // Puts the reduced gradients of the memory into p.grad for the slots that `wanted` selects. Skips
  // a slot if the user has put something else into p.grad in the meantime.
  void write_back(const std::function<bool(std::size_t)>& wanted);
  // Puts what lies in a slot's memory into its p.grad.
  void copy_out(GradientSlot& slot) const;
  // Records that each p.grad now counts as reduced. Call it only after every p.grad was written:
  // gradients may be views of one tensor, and a write to one then counts as a write to each.
  void note_reduced();
  // Moves the gradients to fresh memory. A tensor in the old memory that is not a gradient keeps
  // that memory, and nothing is born in its slot any more.
  void move_away();
  // Removes slots from the memory if their gradients are only rows, as `only_rows` tells.
  void move_rows_out(const std::function<bool(std::size_t)>& only_rows);
  // Returns the bytes of gradients that take_gradient() had to move, since construction.
  std::uint64_t moved_bytes() const { return moved_bytes_; }

 private:
  void lay_out();
  void give_memory(GradientSlot& slot, const at::Tensor& memory);
  void put_in(GradientSlot& slot);
  void copy_in(const GradientSlot& slot);
  static bool is_taken(const GradientSlot& slot);

  const bool sparse_as_dense_;
  GradientMemory& memory_;
  std::vector<GradientSlot> slots_;
  const c10::ScalarType dtype_;
  std::size_t missing_ = 0;  // slots not ready
  std::uint64_t moved_bytes_ = 0;
  bool strays_ = false;
};

// Rounds up to whole cache lines. Slots start on one, so that kernels and optimizers stay aligned
// and ranks share no line.
std::int64_t padded_to_lines(std::int64_t elements, std::size_t element_bytes);

}  // namespace ciranda
