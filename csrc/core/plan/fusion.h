#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/inline_vector.h"
#include "core/negotiate/response.h"

namespace ciranda {

// What a backend runs in one piece. The members have the same group, kind, op, dtype, scale, root,
// backend, wire dtype and streams, and the same ranks have joined. Their payloads are concatenated
// in the agreed order.
struct FusedOp {
  OpKind kind = OpKind::kAllreduce;  // what the requests' kind runs as: runs_as()
  std::shared_ptr<const Group> group;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kFloat32;
  Rank root = kNoRank;
  double prescale = 1.0;
  double postscale = 1.0;
  bool in_arena = false;
  bool shares_step = false;  // the spec has a rule: each host runs it on its own
  BackendId backend = BackendId::kNative;
  std::optional<DType> wire_dtype = {};  // see RequestSpec
  std::uint8_t streams = 0;              // see RequestSpec
  struct Member {
    std::uint32_t response;  // position in the span given to plan_fusion
    std::uint32_t tensor;    // position in that response's spec
    bool operator==(const Member&) const = default;
  };
  InlineVector<Member, 2> members;
  std::vector<Rank> joined;  // see Response
};

struct FusionLimits {
  std::uint64_t bytes_max = 64ull << 20;  // payload bytes of a fused op
};

// Splits the kRun responses into fused ops and skips the other responses. A pure function of its
// arguments: the result is the same on every rank and in every run, also on ranks that are no
// members. Only allreduce, broadcast and send fuse. A response's tensors of different dtypes become
// different ops. The first member of an op sets its place in the order, and nothing overtakes a
// kind that does not fuse. A tensor above bytes_max becomes a separate op. An in_arena request
// becomes one op, of any size and without other members: its chunks are claimed where they lie.
std::vector<FusedOp> plan_fusion(std::span<const Response> responses, const FusionLimits& limits);

}  // namespace ciranda
