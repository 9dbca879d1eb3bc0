#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "ciranda/torch/gradient/arena_gradients.h"
#include "ciranda/torch/tensor/device_stream.h"
#include "core/engine/engine.h"

namespace ciranda {

// A bucket's gradients on a GPU: one tensor there, and its allreduce. The host never waits for the
// GPU. The counters lie in the arena and have a reduction of their own, so that the host can
// decide by them without waiting for the GPU either.
class DeviceGradients final : public BucketMemory {
 public:
  // `reduction` has no tensors yet. The bucket has `slots` gradients of `dtype`. Float32 gradients
  // are rounded to the wire dtype of `reduction` and summed in it.
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
  at::Tensor sent_;                   // what is reduced: the memory, or a copy in the wire dtype
  std::vector<c10::Stream> writers_;  // streams that wrote in this step
  std::shared_ptr<const RequestSpec> spec_;
  Handle handle_;
};

}  // namespace ciranda
