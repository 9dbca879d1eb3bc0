#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

namespace ciranda {

// A gradient's memory in a bucket, and the one tensor at a time that lies in it. That tensor has a
// storage of its own: the place is free when the tensor is gone, and not before, whoever holds it.
//
// Backward may be handed the memory to write into: AccumulateGrad takes a gradient over without a
// copy, so one that is born in its place need not be moved there. The first GradientPlace puts an
// allocator in front of torch's CPU allocator. While backward runs a node that leads to the
// parameter, requests of exactly the gradient's size are watched; a node may make several, because
// the gradient of its input can have the same size. The first pass shows which of them became the
// gradient, and later passes get the place as the answer to that one. A guess that proved wrong is
// learned anew, a few times; where torch computes a gradient in another way, it lies elsewhere and
// the bucket copies it.
//
// Thread-safe, but for construction, destruction, attach() and move_to().
class GradientPlace {
 public:
  // `memory` shall hold the gradient of `parameter`; `accumulator`, its gradient accumulator,
  // outlives this. Without one nothing is born here.
  GradientPlace(at::Tensor memory, at::Tensor parameter, const torch::autograd::Node* accumulator);
  ~GradientPlace();
  GradientPlace(const GradientPlace&) = delete;
  GradientPlace& operator=(const GradientPlace&) = delete;

  // Whether backward may have the memory as soon as p.grad is undefined: nobody reads what lies
  // there. False at first.
  void set_open(bool open) { open_.store(open, std::memory_order_release); }
  // Replaces the gradient accumulator.
  void attach(const torch::autograd::Node* accumulator);
  // A tensor lies here, and p.grad need not be the one.
  bool occupied() const;
  // A tensor that lies here, of the memory's layout; undefined where one does already, and for good
  // after give_up().
  at::Tensor lend();
  // A pass has left the gradient at `data`.
  void learn(const void* data);
  std::size_t bytes() const { return bytes_; }
  // Other memory of the same size from here on; a tensor that lies in the old one keeps it.
  void move_to(at::Tensor memory);
  // No tensor shall lie here any more.
  void give_up();

 private:
  friend class GradientPlaces;
  const at::Tensor parameter_;
  const torch::autograd::Node* accumulator_;
  const std::size_t bytes_;  // of the memory
  std::atomic<bool> open_ = false;
  // Guarded by the mutex of GradientPlaces.
  at::Tensor memory_;
  int awaited_;  // the request of a pass that becomes the gradient
  int wrong_guesses_ = 0;
  bool given_up_ = false;
  std::vector<const void*> seen_;  // the answers to this pass's requests
};

}  // namespace ciranda
