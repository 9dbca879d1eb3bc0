#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "ciranda/torch/gradient/arena_gradients.h"
#include "ciranda/torch/tensor/device_stream.h"
#include "core/engine/engine.h"

namespace ciranda {

// Gradients on a GPU: one tensor there, and its allreduce. The host never waits for the GPU. Their
// counters are in the arena and are reduced by themselves: what the host decides by them does not
// wait for the GPU either.
class DeviceGradients final : public BucketMemory {
 public:
  // `reduction`: without tensors. Of `slots` gradients of `dtype`; float32 ones are rounded to its
  // wire dtype and summed in it.
  DeviceGradients(std::shared_ptr<Engine> engine, std::shared_ptr<TorchStream> stream,
                  RequestSpec reduction, c10::ScalarType dtype, std::size_t slots);

  at::Tensor lay_out(std::int64_t elements,
                     const std::vector<std::vector<std::int64_t>>& shapes) override;
  void written() override;
  UsedCounters& counters() override { return used_.counters(); }
  void submit() override;
  bool submitted() const override { return used_.submitted(); }
  void append_handles(std::vector<Handle>& out) const override;
  void write_back() override;
  void retire() override;
  std::size_t arena_bytes() const override { return used_.arena_bytes(); }

 private:
  void queue_behind_handle();

  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<TorchStream> stream_;
  const RequestSpec reduction_;
  const c10::ScalarType dtype_;
  ArenaGradients used_;  // the counters
  at::Tensor memory_;
  at::Tensor sent_;                   // what travels: the memory, or a copy in the wire dtype
  std::vector<c10::Stream> writers_;  // of this step
  std::shared_ptr<const RequestSpec> spec_;
  Handle handle_;
};

}  // namespace ciranda
