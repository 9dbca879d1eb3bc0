#include "ciranda/torch/tensor/device_stream.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <optional>
#include <type_traits>
#include <utility>

#include "ciranda/torch/tensor/error.h"

namespace ciranda {
namespace {

using c10::impl::VirtualGuardImpl;

template <typename Fn>
auto attempt(c10::Device device, const Fn& fn) -> Result<std::invoke_result_t<Fn>> {
  const auto error = [device](const char* text) {
    return Error{.code = ErrorCode::kSystem, .text = device.str() + ": " + text};
  };
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Fn>>) {
      fn();
      return {};
    } else {
      return fn();
    }
  } catch (const c10::Error& problem) {
    return error(problem.what_without_backtrace());
  } catch (const std::exception& problem) {
    return error(problem.what());
  }
}

// Returns a function of CUDA's driver by its name; null if torch has not loaded the driver.
template <typename Function>
Function of_driver(const char* name) {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return driver == nullptr ? nullptr : reinterpret_cast<Function>(::dlsym(driver, name));
}

// Allows the calling thread to query events, as long as this lives, while a thread captures a CUDA
// graph. CUDA otherwise forbids such queries, and a query ends the capture. Our events are in no
// graph, so the queries do no harm.
class BesideCaptures {
 public:
  explicit BesideCaptures(c10::DeviceType type)
      : exchange_mode_(type == c10::DeviceType::CUDA ? find() : nullptr) {
    exchange();
  }
  ~BesideCaptures() { exchange(); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  using ExchangeMode = int (*)(int* mode);
  static ExchangeMode find() {
    static const auto kFound = of_driver<ExchangeMode>("cuThreadExchangeStreamCaptureMode");
    return kFound;
  }
  void exchange() {
    if (exchange_mode_ != nullptr) (void)exchange_mode_(&mode_);
  }

  const ExchangeMode exchange_mode_;
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; then the thread's former mode
};

// Runs `fn` with `device` as the calling thread's device. CUDA would otherwise take device 0 in a
// thread that has none yet, and make a context there.
template <typename Fn>
auto attempt_on(c10::Device device, const Fn& fn) -> Result<std::invoke_result_t<Fn>> {
  return attempt(device, [&] {
    const c10::DeviceGuard on_device(device);
    const BesideCaptures beside(device.type());
    return fn();
  });
}

class TorchEvent final : public DeviceEvent {
 public:
  explicit TorchEvent(const c10::Stream& stream) : event_(stream.device_type()) {
    event_->record(stream);
  }
  ~TorchEvent() override {
    (void)attempt_on(event_->device(), [this] { event_.reset(); });
  }
  void block(const c10::Stream& stream) const { event_->block(stream); }
  Result<bool> passed() const override {
    return attempt_on(event_->device(), [this] { return event_->query(); });
  }

 private:
  std::optional<c10::Event> event_;  // recorded once; any thread may query it after that
};

Result<std::shared_ptr<DeviceEvent>> try_record(const c10::Stream& stream) {
  return attempt_on(stream.device(), [&]() -> std::shared_ptr<DeviceEvent> {
    return std::make_shared<TorchEvent>(stream);
  });
}

Status try_wait(const c10::Stream& stream, const DeviceEvent& event) {
  return attempt_on(stream.device(), [&] { static_cast<const TorchEvent&>(event).block(stream); });
}

}  // namespace

Result<std::shared_ptr<TorchStream>> TorchStream::make(c10::Device device) {
  return attempt(device, [&] {
    const VirtualGuardImpl guard(device.type());
    const c10::Stream stream = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
    return std::shared_ptr<TorchStream>(
        new TorchStream(stream, guard.getStreamNativeHandle(stream)));
  });
}

int TorchStream::compute_capability() const {
  if (!stream_.device().is_cuda()) return 0;
  const auto find = of_driver<int (*)(int* device, int number)>("cuDeviceGet");
  const auto tell =
      of_driver<int (*)(int* value, int attribute, int device)>("cuDeviceGetAttribute");
  if (find == nullptr || tell == nullptr) return 0;
  constexpr int kMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
  constexpr int kMinor = 76;
  int device = 0, major = 0, minor = 0;
  const bool told = find(&device, this->device()) == 0 && tell(&major, kMajor, device) == 0 &&
                    tell(&minor, kMinor, device) == 0;
  return told ? 10 * major + minor : 0;
}

Result<int> TorchStream::enter() {
  const c10::Device device = stream_.device();
  return attempt(device, [&]() -> int {
    return VirtualGuardImpl(device.type()).exchangeDevice(device).index();
  });
}

void TorchStream::leave(int before) {
  const c10::DeviceType type = stream_.device_type();
  VirtualGuardImpl(type).uncheckedSetDevice({type, static_cast<c10::DeviceIndex>(before)});
}

Status TorchStream::wait(const DeviceEvent& event) {
  return try_wait(stream_, event);
}

Result<std::shared_ptr<DeviceEvent>> TorchStream::record() {
  return try_record(stream_);
}

c10::Stream current_stream(c10::Device device) {
  return VirtualGuardImpl(device.type()).getStream(device);
}

std::shared_ptr<DeviceEvent> record(const c10::Stream& stream) {
  return unwrap(try_record(stream));
}

void wait(const c10::Stream& stream, const DeviceEvent& event) {
  check(try_wait(stream, event));
}

void keep_for(const c10::Stream& stream, const at::Tensor& tensor) {
  VirtualGuardImpl(stream.device_type()).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

}  // namespace ciranda
