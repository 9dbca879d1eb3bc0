#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ciranda/torch/gradient/bucket_memory.h"
#include "core/engine/engine.h"

namespace ciranda {

// Gradients in the arena of the host, their counters behind them; or the counters alone.
class ArenaGradients final : public BucketMemory {
 public:
  // `reduction`: without tensors. Of `slots` gradients of `dtype`.
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

  // Instead of submit(), the same memory with another request, which is not checked twice if it
  // comes twice in a row, and with what is done instead of a reduction.
  void send(const std::shared_ptr<const RequestSpec>& spec, decltype(Submission::work) work);
  // Of submit(); another one after each lay_out().
  const std::shared_ptr<const RequestSpec>& spec() const { return spec_; }
  const Handle& handle() const { return handle_; }
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
  std::shared_ptr<const RequestSpec> checked_;  // the latest that the engine took
  Handle handle_;
};

}  // namespace ciranda
