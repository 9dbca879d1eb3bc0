#include "core/plan/fusion.h"

#include <algorithm>
#include <optional>

#include "core/base/assert.h"

namespace ciranda {
namespace {

// Collects the ops. `open_` refers, by position in `ops_`, to the ops that may still grow.
class Planner {
 public:
  explicit Planner(const FusionLimits& limits) : limits_(limits) {}

  void add(std::uint32_t position, const Response& response) {
    const RequestSpec& spec = *response.spec;
    if (spec.in_arena) return add_bucket(position, response);
    if (!facts_of(spec.kind).fuses) return add_alone(position, response);
    for (std::uint32_t i = 0; i < spec.tensors.size(); ++i) add_fused(position, i, response);
  }

  std::vector<FusedOp> take() { return std::move(ops_); }

 private:
  struct Open {
    std::size_t position;
    std::uint64_t bytes;
  };

  // A bucket lies in one piece already, whatever its size. Open ops stay open.
  void add_bucket(std::uint32_t position, const Response& response) {
    const RequestSpec& spec = *response.spec;
    FusedOp& op = start(response, spec.tensors.front().dtype);
    for (std::uint32_t i = 0; i < spec.tensors.size(); ++i) op.members.push_back({position, i});
  }

  // Later tensors must not move before this response, so all open ops end here.
  void add_alone(std::uint32_t position, const Response& response) {
    open_.clear();
    const RequestSpec& spec = *response.spec;
    if (spec.tensors.empty()) start(response, DType::kFloat32).members.push_back({position, 0});
    for (std::uint32_t i = 0; i < spec.tensors.size(); ++i)
      start(response, spec.tensors[i].dtype).members.push_back({position, i});
  }

  void add_fused(std::uint32_t position, std::uint32_t tensor, const Response& response) {
    const RequestSpec& spec = *response.spec;
    const DType dtype = spec.tensors[tensor].dtype;
    const std::uint64_t bytes = tensor_bytes(spec.tensors[tensor]);
    if (bytes > limits_.bytes_max) {
      start(response, dtype).members.push_back({position, tensor});
      return;
    }
    Open* open = std::find_if(open_.begin(), open_.end(), [&](const Open& candidate) {
      return matches(ops_[candidate.position], response, dtype);
    });
    if (open != open_.end() && bytes > limits_.bytes_max - open->bytes) {
      open_.erase(open);  // full: later tensors must not move before this one
      open = open_.end();
    }
    if (open == open_.end()) {
      start(response, dtype);
      open_.push_back({.position = ops_.size() - 1, .bytes = 0});
      open = open_.end() - 1;
    }
    open->bytes += bytes;
    CIRANDA_ASSERT(open->bytes <= limits_.bytes_max);
    ops_[open->position].members.push_back({position, tensor});
  }

  static bool matches(const FusedOp& op, const Response& response, DType dtype) {
    const RequestSpec& spec = *response.spec;
    if (op.group != response.group || op.joined != response.joined) return false;
    if (op.kind != runs_as(spec.kind) || op.op != spec.op || op.dtype != dtype ||
        op.root != spec.root)
      return false;
    return op.prescale == spec.prescale && op.postscale == spec.postscale &&
           op.wire_dtype == spec.wire_dtype && op.streams == spec.streams &&
           op.backend == spec.backend;
  }

  FusedOp& start(const Response& response, DType dtype) {
    const RequestSpec& spec = *response.spec;
    FusedOp& op = ops_.emplace_back();
    op.kind = runs_as(spec.kind);
    op.group = response.group;
    op.joined = response.joined;
    op.op = spec.op;
    op.dtype = dtype;
    op.root = spec.root;
    op.prescale = spec.prescale;
    op.postscale = spec.postscale;
    op.in_arena = spec.in_arena;
    op.shares_step = !spec.rule.empty();
    op.backend = spec.backend;
    op.wire_dtype = spec.wire_dtype;
    op.streams = spec.streams;
    return op;
  }

  const FusionLimits& limits_;
  std::vector<FusedOp> ops_;
  InlineVector<Open, 4> open_;
};

}  // namespace

std::vector<FusedOp> plan_fusion(std::span<const Response> responses, const FusionLimits& limits) {
  Planner planner(limits);
  for (std::uint32_t i = 0; i < responses.size(); ++i) {
    const Response& response = responses[i];
    if (response.verdict != Response::Verdict::kRun) continue;
    CIRANDA_ASSERT(response.spec != nullptr);
    planner.add(i, response);
  }
  return planner.take();
}

}  // namespace ciranda
