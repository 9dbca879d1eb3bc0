#pragma once

#include <memory>

#include "core/base/result.h"

namespace ciranda {

// What a backend needs of an accelerator, beside its library of collectives. The torch layer
// implements it with torch's own streams and events.

// A point in the work of a device. Thread-safe.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Whether the device has got there. Does not block.
  virtual Result<bool> passed() const = 0;
};

// A queue of work of a device, at best the backend's alone: what others put there only delays. One
// thread at a time, but for enter() and leave(), which any thread may call; nothing blocks.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  // The device's number on this host; equal for two streams of one device.
  virtual int device() const = 0;
  // Of an NVIDIA GPU, its compute capability: 90 is 9.0, Hopper. 0 where that is not known.
  virtual int compute_capability() const = 0;
  // The driver's handle: a cudaStream_t.
  virtual void* native() const = 0;
  // Makes the device that of the calling thread. Gives the number of the one that it had before.
  virtual Result<int> enter() = 0;
  // Makes device `before` that of the calling thread again.
  virtual void leave(int before) = 0;
  // What is queued from here on starts after `event`, which this kind of stream has recorded.
  virtual Status wait(const DeviceEvent& event) = 0;
  // A point after everything that is queued.
  virtual Result<std::shared_ptr<DeviceEvent>> record() = 0;
};

// The device of `stream` is that of the calling thread as long as this lives.
class OnDevice {
 public:
  explicit OnDevice(DeviceStream& stream) : stream_(stream), before_(stream.enter()) {}
  ~OnDevice() {
    if (before_) stream_.leave(before_.value());
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  Status status() const { return before_ ? Status() : Status(before_.error()); }

 private:
  DeviceStream& stream_;
  const Result<int> before_;
};

// How a submission's memory of a device is reached.
struct DeviceWork {
  std::shared_ptr<DeviceStream> stream = {};  // null: memory of the CPU
  std::shared_ptr<DeviceEvent> ready = {};    // inputs have their values, outputs may be written
};

}  // namespace ciranda
