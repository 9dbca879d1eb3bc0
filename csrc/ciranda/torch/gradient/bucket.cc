#include "ciranda/torch/gradient/bucket.h"

#include <utility>

#include "ciranda/torch/gradient/device_gradients.h"
#include "core/base/assert.h"

namespace ciranda {

Bucket::Bucket(const std::shared_ptr<const Communicator>& among, const ReducerOptions& options,
               Contents contents)
    : rule_(contents.rule) {
  const c10::ScalarType dtype = contents.members.front().parameter.scalar_type();
  const std::size_t slots = contents.members.size();
  ArenaGradients* in_arena = nullptr;
  if (contents.stream) {
    memory_ = std::make_unique<DeviceGradients>(among->engine, std::move(contents.stream),
                                                std::move(contents.reduction), dtype, slots);
  } else {
    auto arena = std::make_unique<ArenaGradients>(among->engine, std::move(contents.reduction),
                                                  dtype, slots);
    in_arena = arena.get();
    memory_ = std::move(arena);
  }
  gradients_ = std::make_unique<GradientBuffer>(std::move(contents.members),
                                                options.sparse_as_dense, *memory_);
  if (contents.shared_step) {
    CIRANDA_ASSERT(in_arena != nullptr);
    step_ = std::make_unique<SharedStepOperations>(among, *in_arena, gradients_->slots(),
                                                   options.share_parameters, options.journaled);
  }
}

void Bucket::submit() {
  CIRANDA_ASSERT(gradients_->complete() && !submitted());  // I15
  close();
  memory_->submit();
}

void Bucket::take_for_step() {
  CIRANDA_ASSERT(step_ && !submitted());
  gradients_->take_unreduced_gradients();
  close();
}

// Closes the places to backward, and writes the counters for the other ranks.
void Bucket::close() {
  gradients_->open_places(false);
  const std::vector<GradientSlot>& slots = gradients_->slots();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    memory_->counters().write(i, slots[i].used && !slots[i].sparse, slots[i].sparse);
  }
}

void Bucket::write_back() {
  CIRANDA_ASSERT(submitted());
  memory_->write_back();
  gradients_->write_back([this](std::size_t index) { return dense_anywhere(index); });
}

void Bucket::reset() {
  memory_->retire();
  gradients_->reset();
}

void Bucket::set_foreign(std::size_t index, bool foreign) {
  gradients_->set_foreign(index, foreign, /*in_flight=*/submitted());
}

bool Bucket::dense_anywhere(std::size_t index) const {
  return memory_->counters().dense_anywhere(index);
}

bool Bucket::sparse_anywhere(std::size_t index) const {
  return memory_->counters().sparse_anywhere(index);
}

void Bucket::move_sparse_out() {
  gradients_->move_rows_out(
      [this](std::size_t index) { return sparse_anywhere(index) && !dense_anywhere(index); });
}

std::size_t Bucket::arena_bytes() const {
  return memory_->arena_bytes() + (step_ ? step_->shared().arena_bytes() : 0);
}

}  // namespace ciranda
