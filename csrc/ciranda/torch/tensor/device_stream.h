#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <memory>

#include "core/base/device.h"

namespace ciranda {

// Streams and events of torch's devices, of whatever kind: no driver's header is needed, and one
// build serves machines with and without a GPU. Nothing here waits for a device. What torch throws
// becomes kSystem with the device's own words.

// A stream of torch's pool of high priority, which hands its few streams out in turn: only who asks
// for many of high priority may come to share it.
class TorchStream final : public DeviceStream {
 public:
  static Result<std::shared_ptr<TorchStream>> make(c10::Device device);

  const c10::Stream& torch() const { return stream_; }
  int device() const override { return stream_.device_index(); }
  int compute_capability() const override;
  void* native() const override { return native_; }
  Result<int> enter() override;
  void leave(int before) override;
  // `event` comes from record().
  Status wait(const DeviceEvent& event) override;
  Result<std::shared_ptr<DeviceEvent>> record() override;

 private:
  TorchStream(c10::Stream stream, void* native) : stream_(stream), native_(native) {}

  const c10::Stream stream_;
  void* const native_;
};

// The stream that torch uses for `device` in this thread.
c10::Stream current_stream(c10::Device device);
// A point after everything that is queued on `stream`. Throws Exception.
std::shared_ptr<DeviceEvent> record(const c10::Stream& stream);
// What is queued on `stream` from here on starts after `event`, which comes from record(). Throws
// Exception.
void wait(const c10::Stream& stream, const DeviceEvent& event);
// `stream` uses the tensor's memory: once freed, it is not given out again before what is queued
// there by then is done.
void keep_for(const c10::Stream& stream, const at::Tensor& tensor);

}  // namespace ciranda
