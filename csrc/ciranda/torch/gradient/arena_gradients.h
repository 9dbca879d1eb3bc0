#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ciranda/torch/gradient/bucket_memory.h"
#include "core/engine/engine.h"

namespace ciranda {

// A bucket's gradients in the host's arena, followed by their counters; or the counters alone.
class ArenaGradients final : public BucketMemory {
 public:
  // `reduction` has no tensors yet. The bucket has `slots` gradients of `dtype`.
  ArenaGradients(std::shared_ptr<Engine> engine, RequestSpec reduction, c10::ScalarType dtype,
                 std::size_t slots);

  at::Tensor lay_out(std::int64_t elements,
                     const std::vector<std::vector<std::int64_t>>& shapes) override;
  void written() override {}
  UsedCounters& counters() override { return counters_; }
  void submit() override { send(spec_, {}); }
  bool submitted() const override { return handle_ != nullptr; }
  void append_handles(std::vector<Handle>& out) const override;
  void write_back() override {}
  void retire() override { handle_ = nullptr; }
  std::size_t arena_bytes() const override { return arena_.bytes; }

  // Submits the same memory as submit(), with another request and with `work` instead of a
  // reduction. A request that comes twice in a row is not checked again.
  void send(const std::shared_ptr<const RequestSpec>& spec, decltype(Submission::work) work);
  // The request of submit(); lay_out() makes a new one.
  const std::shared_ptr<const RequestSpec>& spec() const { return spec_; }
  const Handle& handle() const { return handle_; }
  const ArenaBuffer& arena() const { return arena_; }
  const std::byte* data() const { return arena_.data; }
  c10::ScalarType dtype() const { return dtype_; }
  std::int64_t elements() const { return elements_; }  // gradients, padding and counters

 private:
  const std::shared_ptr<Engine> engine_;
  const RequestSpec reduction_;
  const c10::ScalarType dtype_;
  UsedCounters counters_;
  std::int64_t elements_ = 0;
  ArenaBuffer arena_;
  std::shared_ptr<const RequestSpec> spec_;
  std::shared_ptr<const RequestSpec> checked_;  // the latest that the engine accepted
  Handle handle_;
};

}  // namespace ciranda
