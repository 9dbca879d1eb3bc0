#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/runtime/engine.h"
#include "torch/device_stream.h"

namespace ciranda {

// The gradients of a bucket where its parameters are on a GPU: one tensor there, and its allreduce.
// The host never waits for the GPU.
//
// Not thread-safe; belongs to a Bucket. Throws Exception.
class DeviceGradients {
 public:
  // `reduction`: without tensors. Float32 gradients are rounded to its wire dtype and summed in it.
  DeviceGradients(std::shared_ptr<Engine> engine, std::shared_ptr<TorchStream> stream,
                  RequestSpec reduction);

  // Fresh memory, of zeros.
  at::Tensor lay_out(std::int64_t elements, c10::ScalarType dtype);
  // The current stream has been told to write into it.
  void written();
  // Tells the other ranks that all is written. Does not block.
  void submit();
  // Of the latest submit(); null after retire().
  const Handle& handle() const { return handle_; }
  // The handle is done: what the current stream does from here on sees the reduced gradients.
  void publish();
  // The handle, if there is one, is done: the current stream may write into the memory again.
  void retire();

 private:
  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<TorchStream> stream_;
  const RequestSpec reduction_;
  at::Tensor memory_;
  at::Tensor sent_;                   // what travels: the memory, or a copy in the wire dtype
  std::vector<c10::Stream> writers_;  // of this step
  std::shared_ptr<const RequestSpec> spec_;
  Handle handle_;
};

}  // namespace ciranda
