#include "core/engine/run/inline_data.h"

#include <algorithm>
#include <array>

#include "core/backend/reduce_args.h"
#include "core/base/assert.h"

namespace ciranda {

bool may_travel_inline(const RequestSpec& spec) {
  if (spec.kind != OpKind::kAllreduce || spec.op == ReduceOp::kAdasum || spec.in_arena ||
      spec.backend != BackendId::kNative || spec.tensors.size() != 1) {
    return false;
  }
  const std::uint64_t bytes = tensor_bytes(spec.tensors.front());
  return bytes > 0 && bytes <= kInlineBytesMax;
}

bool came_inline(const FusedOp& op, const std::vector<Response>& responses) {
  if (op.group->size() > kLocalRanksMax) return false;  // several hosts, whatever they sent
  return std::all_of(op.members.begin(), op.members.end(), [&](const FusedOp::Member& member) {
    const Response& response = responses[member.response];
    if (!may_travel_inline(*response.spec)) return false;
    const std::uint64_t bytes = tensor_bytes(response.spec->tensors.front());
    return response.contributions.size() == op.group->ranks.size() &&
           std::all_of(response.contributions.begin(), response.contributions.end(),
                       [&](const RankContribution& one) {
                         return one.contribution.inline_data.size() == bytes;
                       });
  });
}

void reduce_inline(const FusedOp& op, const std::vector<Response>& responses,
                   const Buffers& buffers) {
  const auto ranks = op.group->ranks.size();
  CIRANDA_ASSERT(ranks <= kLocalRanksMax && buffers.size() == op.members.size());
  const kernels::ReduceArgs args = reduce_args(op, op.group->size());
  std::array<const std::byte*, kLocalRanksMax> inputs;
  for (std::size_t i = 0; i < op.members.size(); ++i) {
    const auto& contributions = responses[op.members[i].response].contributions;
    CIRANDA_ASSERT(contributions.size() == ranks);  // by came_inline()
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      inputs[rank] = contributions[rank].contribution.inline_data.data();
    }
    std::byte* const outputs[] = {buffers[i].out};
    kernels::reduce(args, {inputs.data(), ranks}, outputs,
                    buffers[i].out_bytes / dtype_bytes(op.dtype));
  }
}

}  // namespace ciranda
