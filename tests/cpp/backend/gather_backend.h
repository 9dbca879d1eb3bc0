#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/backend/registry.h"

namespace ciranda::testing {

// The smallest backend that is one, for docs/backends.md: sums float32 tensors by gathering what
// everybody has.
class GatherBackend final : public Backend {
 public:
  explicit GatherBackend(BackendContext context) : context_(std::move(context)) {}

  bool supports(const FusedOp& op) const override {
    return op.kind == OpKind::kAllreduce && op.op == ReduceOp::kSum &&
           op.dtype == DType::kFloat32 && op.prescale == 1.0 && op.postscale == 1.0 && !op.in_arena;
  }

  void start(Execution&& execution) override {
    std::vector<std::byte> mine;
    for (const Buffer& buffer : execution.buffers) {
      mine.insert(mine.end(), buffer.in, buffer.in + buffer.in_bytes);
    }
    auto gathered = context_.exchange("sum." + std::to_string(started_++), std::move(mine));
    running_.push_back({.execution = std::move(execution), .gathered = std::move(gathered)});
  }

  bool advance() override {
    if (running_.empty() || !running_.front().gathered->done()) return false;
    const Running sum = std::move(running_.front());
    running_.pop_front();
    const auto parts = sum.gathered->result();
    if (parts) add_up(parts.value(), sum.execution.buffers);
    sum.execution.done(parts ? Status() : Status(parts.error()), nullptr);
    return true;
  }

  bool idle() const override { return running_.empty(); }
  void blocked_on(std::vector<Rank>&) const override {}  // the exchange wakes whom it waits for
  void abort(const Error& why) override {
    for (const Running& sum : std::exchange(running_, {})) sum.execution.done(why, nullptr);
  }

 private:
  struct Running {
    Execution execution;
    std::unique_ptr<Exchange> gathered;
  };

  static void add_up(const std::vector<std::vector<std::byte>>& parts, const Buffers& buffers) {
    std::size_t offset = 0;
    for (const Buffer& buffer : buffers) {
      std::vector<float> sum(buffer.out_bytes / sizeof(float));
      for (const std::vector<std::byte>& part : parts) {
        for (std::size_t i = 0; i < sum.size(); ++i) {
          float value = 0;
          std::memcpy(&value, part.data() + offset + i * sizeof value, sizeof value);
          sum[i] += value;
        }
      }
      std::ranges::copy(std::as_bytes(std::span(sum)), buffer.out);
      offset += buffer.out_bytes;
    }
  }

  const BackendContext context_;
  std::deque<Running> running_;
  int started_ = 0;  // the same on every rank: executions start in the same order
};

}  // namespace ciranda::testing
