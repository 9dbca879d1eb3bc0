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

// A parameter's part of a buffer. What is looked at for each gradient comes first, in two lines of
// the cache.
struct alignas(64) GradientSlot {
  at::Tensor parameter;
  // The gradient's memory in the buffer, with the parameter's shape, dtype and strides: never the
  // user's. Undefined with `by_rows`.
  at::Tensor memory = {};
  // Its first byte where it is contiguous, on the CPU.
  std::byte* data = nullptr;
  // Lets p.grad lie there; not for small gradients.
  std::unique_ptr<GradientPlace> place = nullptr;
  // Gradients of this parameter were sparse: it has no memory in the buffer.
  bool by_rows = false;
  // Another optimizer reduces it: zeros here, and p.grad is left alone.
  bool foreign = false;
  // This rank has put its gradient there (or zeros, `used` false) in this step.
  bool ready = false;
  bool used = false;
  bool sparse = false;     // the gradient of this step is sparse
  bool in_place = false;   // p.grad lies in the memory, else the result is copied to it
  TensorStamp taken = {};  // the p.grad that was put there
  // What the latest reduction has left in p.grad, until a new gradient is put there.
  std::optional<TensorStamp> reduced = {};
  std::int64_t begin = 0;           // in the buffer, in elements
  GradientAccumulator accumulator;  // the parameter itself holds only a weak reference
  std::string name;
  std::uint64_t contents = 0;  // a digest, by remember_contents()
};

// Where the gradients of a buffer lie.
class GradientMemory {
 public:
  virtual ~GradientMemory() = default;
  // Fresh memory of `elements` zeros, one dimension; a tensor in the old one keeps that alive.
  // `shapes`: of the slots, {0} for one by rows.
  virtual at::Tensor lay_out(std::int64_t elements,
                             const std::vector<std::vector<std::int64_t>>& shapes) = 0;
  // The calling thread has written to it, or has told its stream of a GPU to.
  virtual void written() = 0;
};

// Gradients of some parameters, one behind the other in a memory of their own. A large p.grad lies
// there itself, so that nothing is packed or unpacked; a small one, and one whose memory belongs to
// the user in any way, is copied in and the result copied back into it. Sparse gradients stay in
// p.grad.
//
// Not thread-safe. Throws Exception.
class GradientBuffer {
 public:
  struct Member {
    std::string name;
    at::Tensor parameter;
    GradientAccumulator accumulator;
  };
  // `members`: of one dtype, dense and on one device; at least one. The memory outlives this.
  GradientBuffer(std::vector<Member> members, bool sparse_as_dense, GradientMemory& memory);

  std::vector<GradientSlot>& slots() { return slots_; }
  const std::vector<GradientSlot>& slots() const { return slots_; }

  // Puts this rank's gradient of slot `index` into the buffer. Nothing moves if it was born there
  // or accumulated in place, else one pass. An undefined gradient counts as zeros. May be repeated
  // until the places are closed.
  void take_gradient(std::size_t index);
  // The same for slots without a gradient in the buffer, and for those that have another one now.
  void take_new_gradients();
  // As take_new_gradients(), but what is reduced stays so.
  void take_unreduced_gradients();
  bool complete() const { return missing_ == 0; }  // every slot is ready
  bool begun() const;                              // one is
  // Those that were taken and those that are reduced: the user throws them away.
  void forget_gradients();
  // Whether backward may have the memory.
  void open_places(bool open);
  // For the next step.
  void reset();
  // Reads the gradient that was taken, for release_changed().
  void remember_contents(std::size_t index);
  // Whether somebody has written to a p.grad since remember_contents(), also past autograd's
  // version counter. Such slots are no longer ready.
  bool release_changed();
  // The slot whose p.grad was written to since it was taken, as its version tells; or null.
  const GradientSlot* written_since_taken() const;

  // A gradient was not born in its place since the last call: knows_accumulator() may say why.
  bool had_strays() { return std::exchange(strays_, false); }
  // Whether gradients of slot `index` can be born in their place; attach() makes it so.
  bool knows_accumulator(std::size_t index) const;
  // Replaces the gradient accumulator of slot `index`.
  void attach(std::size_t index, const GradientAccumulator& accumulator);
  // Whether another optimizer reduces the slot. `in_flight`: what was taken must stay.
  void set_foreign(std::size_t index, bool foreign, bool in_flight);
  bool foreign() const;  // all slots are

  // What is reduced in the memory, into p.grad where `wanted` says so of a slot, unless the user
  // has put something else there meanwhile.
  void write_back(const std::function<bool(std::size_t)>& wanted);
  // What lies in the memory of a slot into its p.grad.
  void copy_out(GradientSlot& slot) const;
  // That what is in p.grad is what was reduced. Once all of it has been written: gradients may be
  // views of one tensor, and each is written to as if the others were.
  void note_reduced();
  // Fresh memory: whatever lies in the old one and is not a gradient keeps it, and nothing is born
  // in its slot any more.
  void move_away();
  // Takes the memory of slots away of whose gradients there are only rows, as `only_rows` says.
  void move_rows_out(const std::function<bool(std::size_t)>& only_rows);
  // Bytes of gradients that take_gradient() had to move, since construction.
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

// Slots start on cache lines: kernels and optimizers stay aligned, ranks share no line.
std::int64_t padded_to_lines(std::int64_t elements, std::size_t element_bytes);

}  // namespace ciranda
