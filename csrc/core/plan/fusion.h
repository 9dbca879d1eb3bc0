#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/inline_vector.h"
#include "core/negotiate/response.h"

namespace ciranda {

// What a backend runs in one piece: members of one group, kind, op, dtype, scale, root, backend,
// wire dtype and streams, without the same ranks, in agreed order. The members' payloads are
// concatenated in that order.
struct FusedOp {
  OpKind kind = OpKind::kAllreduce;  // what the requests' kind runs as
  std::shared_ptr<const Group> group;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kFloat32;
  Rank root = kNoRank;
  double prescale = 1.0;
  double postscale = 1.0;
  bool in_arena = false;
  bool shares_step = false;  // the spec has a rule: what is done is each host's own affair
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
  std::uint64_t bytes_max = 64ull << 20;  // a fused op holds at most so many payload bytes
};

// Splits the kRun responses (others are skipped) into fused ops. A pure function of its arguments:
// the same on every rank and in every run, also on ranks that are no members. Only allreduce and
// broadcast fuse; a response's tensors of different dtypes become different ops; the first member
// sets the place in the order and nothing overtakes an unfused kind. A tensor above bytes_max is an
// op of its own. An in_arena request is one op, of any size and with nothing else: its chunks are
// claimed where they lie.
std::vector<FusedOp> plan_fusion(std::span<const Response> responses, const FusionLimits& limits);

}  // namespace ciranda
