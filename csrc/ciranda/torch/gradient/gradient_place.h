#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

namespace ciranda {

// A gradient's memory in a bucket, and the one tensor at a time that lies in it. The tensor has a
// storage for itself, so the place becomes free exactly when the last holder of the tensor lets go
// of it.
//
// Backward may get this memory to write a gradient into. AccumulateGrad takes a gradient over
// without a copy, so a gradient that is born in its place need not be moved there. The first
// GradientPlace puts an allocator in front of torch's CPU allocator. While backward runs a node
// that leads to the parameter, the allocator watches requests of exactly the gradient's size. A
// node may make several of them, because the gradient of its input can have the same size. The
// first pass shows which request became the gradient, and later passes answer that request with the
// place. A wrong guess is learned anew, a few times. If torch computes a gradient in another way,
// the gradient lies elsewhere and the bucket copies it.
//
// Thread-safe, except for construction, destruction, attach() and move_to().
class GradientPlace {
 public:
  // `memory` is for the gradient of `parameter`. `accumulator` is the parameter's gradient
  // accumulator, which outlives this; null: no gradient is born here.
  GradientPlace(at::Tensor memory, at::Tensor parameter, const torch::autograd::Node* accumulator);
  ~GradientPlace();
  GradientPlace(const GradientPlace&) = delete;
  GradientPlace& operator=(const GradientPlace&) = delete;

  // Sets whether backward may use the memory as soon as p.grad is undefined. Set it to true only
  // while nobody reads the memory. The initial value is false.
  void set_open(bool open) { open_.store(open, std::memory_order_release); }
  // Replaces the gradient accumulator.
  void attach(const torch::autograd::Node* accumulator);
  // Returns true if a tensor lies here, which need not be p.grad.
  bool occupied() const;
  // Returns a tensor that lies here, with the memory's layout. Undefined if a tensor already lies
  // here, and always after give_up().
  at::Tensor lend();
  // Learns from a pass that has left the gradient at `data`; null if it has left no dense gradient.
  void learn(const void* data);
  std::size_t bytes() const { return bytes_; }
  // Replaces the memory by other memory of the same size. A tensor in the old memory keeps that
  // alive.
  void move_to(at::Tensor memory);
  // No further tensor will lie here.
  void give_up();

 private:
  friend class GradientPlaces;
  const at::Tensor parameter_;
  const torch::autograd::Node* accumulator_;
  const std::size_t bytes_;  // size of the memory
  std::atomic<bool> open_ = false;
  // Guarded by the mutex of GradientPlaces.
  at::Tensor memory_;
  int awaited_;  // index of a pass's request that becomes the gradient
  int wrong_guesses_ = 0;
  bool given_up_ = false;
  std::vector<const void*> seen_;  // answers to the requests of this pass
};

}  // namespace ciranda
