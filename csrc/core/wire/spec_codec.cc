#include "core/wire/spec_codec.h"

#include <cstdint>
#include <vector>

#include "core/base/assert.h"
#include "core/wire/request_check.h"

namespace ciranda {
namespace {

constexpr std::size_t kTensorBytesMin = 3;  // both dtypes, number of dimensions

std::uint64_t root_plus_one(const RequestSpec& spec) {
  return static_cast<std::uint64_t>(std::int64_t{spec.root} + 1);
}

std::uint8_t wire_dtype_plus_one(const RequestSpec& spec) {
  return spec.wire_dtype ? static_cast<std::uint8_t>(*spec.wire_dtype) + 1 : 0;
}

// Ascending ranks travel as the number of ranks left out before each. So every list has one
// encoding, and every decoded list ascends.
template <typename Fn>
void for_each_gap(const std::vector<Rank>& ranks, Fn each) {
  Rank next = 0;
  for (const Rank rank : ranks) {
    each(static_cast<std::uint64_t>(rank - next));
    next = rank + 1;
  }
}

void read_tensor(Reader& in, TensorSpec& tensor) {
  tensor.dtype = static_cast<DType>(in.u8("tensor.dtype", kDTypeCount - 1));
  tensor.user_dtype = static_cast<UserDType>(in.u8("tensor.user_dtype", kUserDTypeCount - 1));
  const std::size_t dims = in.u8("tensor.dimensions", kDimsMax);
  if (dims > in.remaining())
    return in.fail("tensor.dimensions", "is more than the bytes that follow");
  tensor.shape.resize(dims);
  for (std::int64_t& dim : tensor.shape)
    dim = static_cast<std::int64_t>(in.varint("tensor.shape", kTensorBytesMax + 1)) - 1;
}

void read_members(Reader& in, std::vector<Rank>& members) {
  members.resize(in.count("spec.members", kRanksMax, 1));
  Rank next = 0;
  for (Rank& rank : members) {
    if (next == kRanksMax) return in.fail("spec.members", "goes on after the last rank");
    rank = next + static_cast<Rank>(
                      in.varint("spec.members", static_cast<std::uint64_t>(kRanksMax - 1 - next)));
    next = rank + 1;
  }
}

}  // namespace

std::size_t spec_bytes(const RequestSpec& spec) {
  std::size_t bytes = varint_bytes(spec.name.size()) + spec.name.size();
  bytes += 6 + 8 + 8;  // kind, op, in_arena, wire_dtype, streams, backend; two scale factors
  bytes += varint_bytes(spec.group) + varint_bytes(root_plus_one(spec));
  if (spec.in_arena) bytes += varint_bytes(spec.arena_bytes);
  bytes += varint_bytes(spec.rule.size()) + spec.rule.size();
  bytes += varint_bytes(spec.tensors.size());
  for (const TensorSpec& tensor : spec.tensors) {
    bytes += kTensorBytesMin;
    for (const std::int64_t dim : tensor.shape)
      bytes += varint_bytes(static_cast<std::uint64_t>(dim) + 1);
  }
  if (spec.kind == OpKind::kRemoveGroup) bytes += varint_bytes(spec.removes);
  if (spec.kind == OpKind::kAddGroup) {
    bytes += varint_bytes(spec.members.size());
    for_each_gap(spec.members, [&](std::uint64_t gap) { bytes += varint_bytes(gap); });
  }
  return bytes;
}

void write_spec(Writer& out, const RequestSpec& spec) {
  CIRANDA_ASSERT(check_spec(spec).ok());  // callers have called check_limits()
  out.varint(spec.name.size());
  out.text(spec.name);
  out.u8(static_cast<std::uint8_t>(spec.kind));
  out.varint(spec.group);
  out.u8(static_cast<std::uint8_t>(spec.op));
  out.varint(root_plus_one(spec));
  out.f64(spec.prescale);
  out.f64(spec.postscale);
  out.u8(spec.in_arena ? 1 : 0);
  if (spec.in_arena) out.varint(spec.arena_bytes);
  out.u8(wire_dtype_plus_one(spec));
  out.u8(spec.streams);
  out.u8(static_cast<std::uint8_t>(spec.backend));
  out.varint(spec.rule.size());
  out.text(spec.rule);
  out.varint(spec.tensors.size());
  for (const TensorSpec& tensor : spec.tensors) {
    out.u8(static_cast<std::uint8_t>(tensor.dtype));
    out.u8(static_cast<std::uint8_t>(tensor.user_dtype));
    out.u8(static_cast<std::uint8_t>(tensor.shape.size()));
    for (const std::int64_t dim : tensor.shape) out.varint(static_cast<std::uint64_t>(dim) + 1);
  }
  if (spec.kind == OpKind::kRemoveGroup) out.varint(spec.removes);
  if (spec.kind == OpKind::kAddGroup) {
    out.varint(spec.members.size());
    for_each_gap(spec.members, [&](std::uint64_t gap) { out.varint(gap); });
  }
}

void read_spec(Reader& in, RequestSpec& spec) {
  spec.name = in.text("spec.name", in.count("spec.name", kNameBytesMax, 1));
  spec.kind = static_cast<OpKind>(in.u8("spec.kind", kOpKindCount - 1));
  spec.group = static_cast<GroupId>(in.varint("spec.group", UINT32_MAX));
  spec.op = static_cast<ReduceOp>(in.u8("spec.op", kReduceOpCount - 1));
  spec.root = static_cast<Rank>(in.varint("spec.root", kRanksMax)) - 1;
  spec.prescale = in.f64("spec.prescale");
  spec.postscale = in.f64("spec.postscale");
  spec.in_arena = in.u8("spec.in_arena", 1) != 0;
  spec.arena_bytes = spec.in_arena ? in.varint("spec.arena_bytes", kArenaBytesMax) : 0;
  spec.wire_dtype.reset();
  if (const std::uint8_t plus_one = in.u8("spec.wire_dtype", kDTypeCount); plus_one > 0)
    spec.wire_dtype = static_cast<DType>(plus_one - 1);
  spec.streams = in.u8("spec.streams", kPairStreamsMax);
  spec.backend = static_cast<BackendId>(in.u8("spec.backend", kBackendCount - 1));
  spec.rule = in.text("spec.rule", in.count("spec.rule", kRuleBytesMax, 1));
  spec.tensors.resize(in.count("spec.tensors", kTensorsPerRequestMax, kTensorBytesMin));
  for (TensorSpec& tensor : spec.tensors) {
    read_tensor(in, tensor);
    if (!in.ok()) return;
  }
  if (spec.kind == OpKind::kRemoveGroup)
    spec.removes = static_cast<GroupId>(in.varint("spec.removes", UINT32_MAX));
  if (spec.kind == OpKind::kAddGroup) read_members(in, spec.members);
  if (!in.ok()) return;
  if (const Status status = check_spec(spec); !status.ok()) in.fail("spec", status.error().text);
}

}  // namespace ciranda
