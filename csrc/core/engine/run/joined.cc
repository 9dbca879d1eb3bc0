#include "core/engine/run/joined.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/base/assert.h"

namespace ciranda {

Status without_joined(const FusedOp& op) {
  if (op.joined.empty() || !traits_of(op.backend).on_gpu) return {};
  return Error{.code = ErrorCode::kUnsupported,
               .text = "rank " + std::to_string(op.joined.front()) +
                       " has joined, and GPU tensors cannot be reduced without it; give every rank "
                       "the same number of batches",
               .rank = op.joined.front()};
}

bool leaves_arena(const FusedOp& op, std::size_t here) {
  if (!op.in_arena || op.shares_step || op.joined.empty()) return false;
  return op.backend != BackendId::kNative || here < op.group->ranks.size();
}

Execution of_zeros(FusedOp op, const std::vector<Response>& responses, std::size_t here) {
  Execution execution{.op = std::move(op)};
  FusedOp& what = execution.op;
  CIRANDA_ASSERT(reduces(what.kind) && !what.joined.empty());
  what.root = kNoRank;  // only reductions run
  std::uint64_t all_bytes = 0;
  const auto add = [&](std::uint64_t bytes) {
    execution.buffers.push_back({.in_bytes = bytes, .out_bytes = bytes});
    all_bytes += bytes;
  };
  if (leaves_arena(what, here)) {
    what.in_arena = false;
    add(responses[what.members.front().response].spec->arena_bytes);
  } else if (!what.in_arena) {  // else this rank only counts the operation
    for (const FusedOp::Member& member : what.members) {
      add(tensor_bytes(responses[member.response].spec->tensors[member.tensor]));
    }
  }
  const auto zeros = std::make_shared<std::vector<std::byte>>(all_bytes);
  std::byte* place = zeros->data();
  for (Buffer& buffer : execution.buffers) {
    buffer.in = buffer.out = place;
    place += buffer.in_bytes;
  }
  CIRANDA_ASSERT(place == zeros->data() + all_bytes);
  execution.done = [zeros](const Status&, const std::shared_ptr<DeviceEvent>&) {};
  return execution;
}

}  // namespace ciranda
