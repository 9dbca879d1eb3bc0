#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <memory>

#include "core/base/device.h"

namespace ciranda {

// Streams and events of torch's devices. No driver's header is needed, so one build serves machines
// with and without a GPU. No function here waits for a device. Errors are kSystem with torch's
// message.

// A high-priority stream from torch's pool. The pool hands out its few streams in turn, so only a
// program that asks for many high-priority streams may come to share this one.
class TorchStream final : public DeviceStream {
 public:
  static Result<std::shared_ptr<TorchStream>> make(c10::Device device);

  const c10::Stream& torch() const { return stream_; }
  int device() const override { return stream_.device_index(); }
  int compute_capability() const override;
  void* native() const override { return native_; }
  Result<int> enter() override;
  void leave(int before) override;
  // `event` must come from record().
  Status wait(const DeviceEvent& event) override;
  Result<std::shared_ptr<DeviceEvent>> record() override;

 private:
  TorchStream(c10::Stream stream, void* native) : stream_(stream), native_(native) {}

  const c10::Stream stream_;
  void* const native_;
};

// Returns the stream that torch uses for `device` in this thread.
c10::Stream current_stream(c10::Device device);
// Returns an event that passes when everything queued on `stream` so far is done. Throws Exception.
std::shared_ptr<DeviceEvent> record(const c10::Stream& stream);
// Makes work that is queued on `stream` from now on start after `event`, which must come from
// record(). Throws Exception.
void wait(const c10::Stream& stream, const DeviceEvent& event);
// Tells torch's allocator that `stream` uses the tensor's memory. After the tensor is freed, the
// memory is not reused until the work that is queued on `stream` by then is done.
void keep_for(const c10::Stream& stream, const at::Tensor& tensor);

}  // namespace ciranda
