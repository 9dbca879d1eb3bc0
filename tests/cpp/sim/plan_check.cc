#include "sim/plan_check.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "sim/violation.h"

namespace ciranda::sim {
namespace {

bool may_fuse(OpKind kind) {
  return kind == OpKind::kAllreduce || kind == OpKind::kBroadcast || kind == OpKind::kSend;
}

// What backends are told.
OpKind seen_as(OpKind kind) {
  if (kind == OpKind::kGather || kind == OpKind::kScatter) return OpKind::kAlltoall;
  if (kind == OpKind::kSend) return OpKind::kBroadcast;
  return kind == OpKind::kReduce ? OpKind::kReducescatter : kind;
}

std::uint64_t bytes_of(const TensorSpec& tensor) {
  return static_cast<std::uint64_t>(element_count(tensor.shape)) * dtype_bytes(tensor.dtype);
}

bool alike(const FusedOp& op, const Response& response) {
  const RequestSpec& spec = *response.spec;
  return op.group == response.group && op.joined == response.joined &&
         op.kind == seen_as(spec.kind) && op.op == spec.op && op.root == spec.root &&
         op.prescale == spec.prescale && op.postscale == spec.postscale &&
         op.in_arena == spec.in_arena && op.wire_dtype == spec.wire_dtype &&
         op.streams == spec.streams && op.backend == spec.backend;
}

// How many ops of kinds that do not fuse were agreed before this response.
std::vector<int> regions_of(const std::vector<Response>& responses) {
  std::vector<int> regions;
  int region = 0;
  for (const Response& response : responses) {
    const bool alone =
        response.verdict == Response::Verdict::kRun && !may_fuse(response.spec->kind);
    if (alone) ++region;
    regions.push_back(region);
    if (alone) ++region;
  }
  return regions;
}

}  // namespace

void check_plan(const std::vector<Response>& responses, const std::vector<FusedOp>& plan,
                const FusionLimits& limits) {
  const std::vector<int> regions = regions_of(responses);
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> op_of;
  std::vector<std::uint64_t> bytes(plan.size(), 0);
  std::pair<std::uint32_t, std::uint32_t> first_before{0, 0};
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const FusedOp& op = plan[i];
    require(!op.members.empty(), "plan: an op without members");
    std::pair<std::uint32_t, std::uint32_t> before{0, 0};
    for (std::size_t m = 0; m < op.members.size(); ++m) {
      const std::pair place{op.members[m].response, op.members[m].tensor};
      const Response& response = responses.at(place.first);
      require(response.verdict == Response::Verdict::kRun, "plan: a failed operation runs");
      const RequestSpec& spec = *response.spec;
      require(alike(op, response), "plan: an op of unlike members");
      if (!spec.tensors.empty()) {
        const TensorSpec& tensor = spec.tensors.at(place.second);
        require(tensor.dtype == op.dtype, "plan: an op of different dtypes");
        bytes[i] += bytes_of(tensor);
      }
      require(op_of.emplace(place, i).second, "I4: a tensor is planned twice");
      require(m == 0 || place > before, "plan: members are not in agreed order");
      require(regions[place.first] == regions[op.members[0].response],
              "plan: a tensor overtakes an operation that does not fuse");
      require(!op.in_arena || place.first == op.members[0].response,
              "plan: arena tensors of two operations are fused");
      before = place;
    }
    const std::pair first{op.members[0].response, op.members[0].tensor};
    require(i == 0 || first > first_before,
            "plan: ops are not in the order of their first members");
    first_before = first;
    require(op.members.size() == 1 || op.in_arena ||
                (may_fuse(op.kind) && bytes[i] <= limits.bytes_max),
            "plan: an op is too large");
  }
  std::size_t tensors = 0;
  for (std::uint32_t r = 0; r < responses.size(); ++r) {
    if (responses[r].verdict != Response::Verdict::kRun) continue;
    const RequestSpec& spec = *responses[r].spec;
    tensors += std::max<std::size_t>(1, spec.tensors.size());
  }
  require(tensors == op_of.size(), "I4: a tensor is not planned");

  // Two ops that could have been one: alike, in one region, none of the kind between them, and
  // together small enough.
  for (std::size_t a = 0; a < plan.size(); ++a) {
    for (std::size_t b = a + 1; b < plan.size(); ++b) {
      const FusedOp& first = plan[a];
      const FusedOp& second = plan[b];
      const auto response = first.members[0].response;
      const auto other = second.members[0].response;
      if (!may_fuse(first.kind) || !alike(first, responses[other])) continue;
      if (first.dtype != second.dtype || regions[response] != regions[other]) continue;
      if (first.in_arena) continue;
      require(bytes[a] + bytes[b] > limits.bytes_max, "plan: what could be fused is not");
      break;
    }
  }
}

}  // namespace ciranda::sim
