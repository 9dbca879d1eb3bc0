#pragma once

#include <memory>

#include "core/base/result.h"

namespace ciranda {

// What a backend needs from an accelerator besides its library of collectives. The torch layer
// implements these interfaces with torch's streams and events.

// A point in the work of a device. Thread-safe.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Returns true if the device has reached the point. Does not block.
  virtual Result<bool> passed() const = 0;
};

// A queue of a device's work. It is best used by the backend alone: other work in it only delays.
// One thread at a time, except for enter() and leave(), which any thread may call. Nothing blocks.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  // The device's number on this host; equal for two streams of one device.
  virtual int device() const = 0;
  // Compute capability of an NVIDIA GPU: 90 is 9.0, Hopper. 0 if unknown.
  virtual int compute_capability() const = 0;
  // The driver's handle: a cudaStream_t.
  virtual void* native() const = 0;
  // Makes this device the calling thread's current one. Returns the number of the previous device.
  virtual Result<int> enter() = 0;
  // Makes device `before` the calling thread's current one again.
  virtual void leave(int before) = 0;
  // Makes all work that is queued later start after `event`, which this kind of stream has
  // recorded.
  virtual Status wait(const DeviceEvent& event) = 0;
  // Records an event that passes after everything queued so far.
  virtual Result<std::shared_ptr<DeviceEvent>> record() = 0;
};

// Keeps the device of `stream` the calling thread's current one while this object lives.
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

// How to reach a submission's device memory.
struct DeviceWork {
  std::shared_ptr<DeviceStream> stream = {};  // null: memory of the CPU
  std::shared_ptr<DeviceEvent> ready = {};    // inputs are ready, outputs may be written
};

}  // namespace ciranda
