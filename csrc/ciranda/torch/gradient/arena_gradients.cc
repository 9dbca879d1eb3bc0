#include "ciranda/torch/gradient/arena_gradients.h"

#include <ATen/ops/from_blob.h>

#include <cstring>
#include <utility>

#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/tensor_view.h"
#include "core/base/assert.h"

namespace ciranda {

ArenaGradients::ArenaGradients(std::shared_ptr<Engine> engine, RequestSpec reduction,
                               c10::ScalarType dtype, std::size_t slots)
    : engine_(std::move(engine)),
      reduction_([&] {
        if (dtype != c10::ScalarType::Float) reduction.wire_dtype.reset();
        reduction.in_arena = true;
        reduction.backend = engine_->backend_choice().cpu;  // the arena's
        return std::move(reduction);
      }()),
      dtype_(dtype),
      counters_(dtype, slots) {}

at::Tensor ArenaGradients::lay_out(std::int64_t elements,
                                   const std::vector<std::vector<std::int64_t>>& shapes) {
  const std::size_t element_bytes = c10::elementSize(dtype_);
  CIRANDA_ASSERT(elements == padded_to_lines(elements, element_bytes));  // by GradientBuffer
  elements_ = elements + padded_to_lines(counters_.elements(), element_bytes);
  const std::size_t bytes = static_cast<std::size_t>(elements_) * element_bytes;
  const DType dtype = dtype_of(dtype_, reduction_.name);
  RequestSpec spec = reduction_;
  for (const auto& shape : shapes) spec.tensors.push_back({dtype, shape});
  if (shapes.empty()) spec.tensors = {{dtype, {elements_}}};
  spec.arena_bytes = bytes;
  spec_ = std::make_shared<const RequestSpec>(std::move(spec));

  arena_ = unwrap(engine_->allocate_arena(bytes));
  std::memset(arena_.data, 0, arena_.bytes);  // the memory may have been another bucket's
  counters_.move_to(arena_.data, elements);
  return at::from_blob(
      arena_.data, {elements_}, [lease = arena_.lease](void*) {},
      at::TensorOptions().dtype(dtype_));
}

void ArenaGradients::send(const std::shared_ptr<const RequestSpec>& spec,
                          decltype(Submission::work) work) {
  Submission submission;
  submission.spec = spec;
  submission.is_checked = spec == checked_;
  submission.arena = arena_.ref;
  submission.work = std::move(work);
  handle_ = unwrap(engine_->submit(std::move(submission)));
  checked_ = spec;
}

void ArenaGradients::append_handles(std::vector<Handle>& out) const {
  if (handle_) out.push_back(handle_);
}

}  // namespace ciranda
