#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/runtime/engine.h"
#include "torch/device_gradients.h"
#include "torch/gradient_owners.h"
#include "torch/gradient_place.h"
#include "torch/host_step.h"
#include "torch/reducer_options.h"
#include "torch/tensor_stamp.h"
#include "torch/used_counters.h"

namespace ciranda {

// A parameter's part of a bucket. What is looked at for each gradient comes first, in two lines of
// the cache.
struct alignas(64) BucketSlot {
  at::Tensor parameter;
  // The gradient's memory in the bucket, with the parameter's shape, dtype and strides: never the
  // user's. Undefined with `by_rows`.
  at::Tensor memory = {};
  // Its first byte where it is contiguous, on the CPU.
  std::byte* data = nullptr;
  // Lets p.grad lie there; not for small gradients.
  std::unique_ptr<GradientPlace> place = nullptr;
  // Gradients of this parameter were sparse: it has only counters in the bucket.
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
  std::int64_t begin = 0;           // in the bucket, in elements
  GradientAccumulator accumulator;  // the parameter itself holds only a weak reference
  std::string name;
};

// Gradients that are reduced together, one behind the other in the arena of the host. A large
// p.grad lies there itself, so that nothing is packed or unpacked; a small one, and one whose
// memory belongs to the user in any way, is copied in and the result copied back into it. Behind
// the gradients lie their UsedCounters. Sparse gradients stay in p.grad, see reduce_sparse().
//
// Gradients of parameters on a GPU lie there, see DeviceGradients. Their counters stay in the arena
// and are reduced by themselves: what the host decides by them does not wait for the GPU.
//
// Not thread-safe; belongs to a GradientReducer.
class Bucket {
 public:
  struct Member {
    std::string name;
    at::Tensor parameter;
    GradientAccumulator accumulator;
  };
  // What tells the buckets of one reducer apart.
  struct Contents {
    RequestSpec reduction;                     // named; without tensors
    std::size_t rule = 0;                      // the number of the update rule of its parameters
    std::shared_ptr<TorchStream> stream = {};  // of the parameters' GPU; null on the CPU
    std::vector<Member> members;               // of one dtype, dense and on one device
  };
  // The options outlive the bucket.
  Bucket(std::shared_ptr<Engine> engine, const ReducerOptions& options, Contents contents);

  std::vector<BucketSlot>& slots() { return slots_; }

  // Puts this rank's gradient of slot `index` into the bucket. Nothing moves if it was born there
  // or accumulated in place, else one pass. An undefined gradient counts as zeros. May be repeated
  // until submit().
  void take_gradient(std::size_t index);
  // The same for slots without a gradient in the bucket, and for those that have another one now.
  void take_missing();
  // A gradient was not born in its place since the last call: knows_accumulator() may say why.
  bool had_strays() { return std::exchange(strays_, false); }
  // Those that were taken and those that are reduced: the user throws them away. Nothing is in
  // flight.
  void forget_gradients();
  // Whether gradients of slot `index` can be born in their place: else follow().
  bool knows_accumulator(std::size_t index) const;
  // The parameter of slot `index` has another accumulator now.
  void follow(std::size_t index, const GradientAccumulator& accumulator);
  // Whether another optimizer reduces the slot.
  void set_foreign(std::size_t index, bool foreign);
  bool foreign() const;  // all slots are
  bool begun() const;
  bool complete() const { return missing_ == 0; }
  bool submitted() const { return handle_ != nullptr; }
  // Of what was submitted.
  void append_handles(std::vector<Handle>& out) const;
  std::size_t rule() const { return rule_; }
  // Every slot is ready: tells the other ranks. Does not block.
  void submit();
  // From here on, on the CPU, submit_step() works.
  void share_step();
  void end_shared_step() { host_step_.reset(); }
  // take_missing() for the optimizer's step: backward gets no place from here on.
  // What is reduced stays so.
  void take_gradients();
  // As submit(), for the optimizer's step instead of a mere reduction. The gradients stay as they
  // are. host_step() is prepared for the rule.
  void submit_step(const HostStep::Step& step);
  // The same for the squares of the gradients only; a retire() lies between this and the step.
  void submit_squares(const HostStep::Step& step);
  // Instead of one of these, where this rank wants the ranks to talk first: an operation that does
  // nothing, and that ranks which want the step disagree with.
  void submit_objection(bool squares);
  // The step is done.
  void count_step();
  void retire() { handle_ = nullptr; }
  const std::byte* memory() const { return arena_.data; }  // of all gradients, on the CPU
  HostStep* host_step() { return host_step_.get(); }
  // The handles are done and good: results into p.grad where any rank had a gradient, unless the
  // user has put something else there meanwhile.
  void publish();
  // That what is in p.grad is what was reduced. Once all of it has been written: gradients may be
  // views of one tensor, and each is written to as if the others were.
  void note_reduced();
  // What lies in the memory of a slot into its p.grad.
  void copy_out(BucketSlot& slot) const;
  // For the next step. The handles are done.
  void reset();

  // After publish(): whether any rank had a dense, a sparse gradient for the slot; the same answer
  // on every rank.
  bool dense_anywhere(std::size_t index) const { return counters_.dense_anywhere(index); }
  bool sparse_anywhere(std::size_t index) const { return counters_.sparse_anywhere(index); }
  // Takes the memory of slots whose gradient was sparse and nowhere dense out of the bucket.
  void move_sparse_out();
  // Bytes of arena memory.
  std::size_t arena_bytes() const {
    return arena_.bytes + (host_step_ ? host_step_->arena_bytes() : 0);
  }
  // Bytes of gradients that take_gradient() had to move, since construction.
  std::uint64_t moved_bytes() const { return moved_bytes_; }

 private:
  void lay_out();
  RequestSpec arena_spec() const;
  void give_memory(BucketSlot& slot, const at::Tensor& memory);
  void move_away();
  void put_in(BucketSlot& slot);
  void copy_in(const BucketSlot& slot);
  static bool is_taken(const BucketSlot& slot);
  void open_places(bool open);
  void write_counters();
  HostStep::Used used_anywhere() const;
  std::shared_ptr<const RequestSpec> step_spec(std::shared_ptr<const RequestSpec>& latest,
                                               const char* suffix, const std::string& words) const;
  void send(const std::shared_ptr<const RequestSpec>& spec, decltype(Submission::work) work);

  const std::shared_ptr<Engine> engine_;
  const ReducerOptions& options_;
  const RequestSpec reduction_;
  const std::size_t rule_;
  std::vector<BucketSlot> slots_;
  std::size_t missing_ = 0;  // slots not ready
  c10::ScalarType dtype_;    // of the gradients
  UsedCounters counters_;
  std::int64_t elements_ = 0;  // in the arena: gradients, padding and counters
  std::uint64_t moved_bytes_ = 0;
  bool strays_ = false;
  ArenaBuffer arena_;
  std::unique_ptr<DeviceGradients> device_;  // null on the CPU
  Handle handle_;
  std::shared_ptr<const RequestSpec> spec_;
  std::unique_ptr<HostStep> host_step_;
  std::shared_ptr<const RequestSpec> step_spec_;  // of the latest update rule
  std::shared_ptr<const RequestSpec> squares_spec_;
  std::shared_ptr<const RequestSpec> checked_;  // the latest that the engine took
};

}  // namespace ciranda
