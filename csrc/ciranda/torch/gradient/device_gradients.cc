#include "ciranda/torch/gradient/device_gradients.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/tensor_view.h"

namespace ciranda {
namespace {

RequestSpec used_spec(const RequestSpec& reduction) {
  return {.name = reduction.name + "/used", .group = reduction.group};
}

}  // namespace

DeviceGradients::DeviceGradients(std::shared_ptr<Engine> engine,
                                 std::shared_ptr<TorchStream> stream, RequestSpec reduction,
                                 c10::ScalarType dtype, std::size_t slots)
    : engine_(std::move(engine)),
      stream_(std::move(stream)),
      reduction_(std::move(reduction)),
      dtype_(dtype),
      used_(engine_, used_spec(reduction_), dtype, slots) {}

at::Tensor DeviceGradients::lay_out(std::int64_t elements,
                                    const std::vector<std::vector<std::int64_t>>& /*shapes*/) {
  (void)used_.lay_out(0, {});
  memory_ =
      at::zeros({elements}, at::TensorOptions().dtype(dtype_).device(stream_->torch().device()));
  RequestSpec spec = reduction_;
  const auto wire_dtype = std::exchange(spec.wire_dtype, std::nullopt);
  const bool rounded = wire_dtype && dtype_ == c10::ScalarType::Float;
  sent_ = rounded ? at::empty_like(memory_, memory_.options().dtype(scalar_type(*wire_dtype)))
                  : memory_;
  keep_for(stream_->torch(), memory_);
  keep_for(stream_->torch(), sent_);
  written();
  spec.streams = 0;  // the GPU's backend has its own
  spec.backend = engine_->backend_choice().gpu;
  spec.tensors = {spec_of(sent_, spec.name)};
  spec_ = std::make_shared<const RequestSpec>(std::move(spec));
  return memory_;
}

void DeviceGradients::written() {
  const c10::Stream current = current_stream(memory_.device());
  if (std::find(writers_.begin(), writers_.end(), current) == writers_.end()) {
    writers_.push_back(current);
  }
}

void DeviceGradients::submit() {
  CIRANDA_ASSERT(handle_ == nullptr);
  used_.submit();
  const c10::Stream current = current_stream(memory_.device());
  for (const c10::Stream& writer : std::exchange(writers_, {})) {
    if (writer != current) wait(current, *record(writer));
  }
  if (!sent_.is_same(memory_)) sent_.copy_(memory_);
  Submission submission;
  submission.spec = spec_;
  submission.inputs = {data_of(sent_)};
  submission.outputs = {data_of(sent_)};
  submission.device = {.stream = stream_, .ready = record(current)};
  handle_ = unwrap(engine_->submit(std::move(submission)));
}

void DeviceGradients::append_handles(std::vector<Handle>& out) const {
  used_.append_handles(out);
  if (handle_) out.push_back(handle_);
}

void DeviceGradients::write_back() {
  queue_behind_handle();
  if (!sent_.is_same(memory_)) memory_.copy_(sent_);
}

void DeviceGradients::retire() {
  queue_behind_handle();
  used_.retire();
}

// Makes later work of the current stream start after the operation, which is done, and releases its
// handle.
void DeviceGradients::queue_behind_handle() {
  if (handle_ && handle_->finished()) {
    wait(current_stream(memory_.device()), *handle_->finished());
  }
  handle_ = nullptr;
}

}  // namespace ciranda
