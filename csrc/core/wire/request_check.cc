#include "core/wire/request_check.h"

#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "core/wire/pair.h"

namespace ciranda {
namespace {

Error refused(ErrorCode code, const RequestSpec& spec, std::string sentence) {
  const std::string name = spec.name.substr(0, kNameBytesMax);
  return {.code = code,
          .text = std::string(op_kind_name(spec.kind)) +
                  (name.empty() && is_membership(spec.kind) ? "" : " '" + name + "'") + ": " +
                  std::move(sentence),
          .tensor = name};
}

std::string beyond(std::string_view what, std::uint64_t value, std::uint64_t limit) {
  return std::string(what) + " " + std::to_string(value) + " exceeds the limit of " +
         std::to_string(limit);
}

bool is_half(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

Status check_tensor(const RequestSpec& spec, std::size_t index) {
  const TensorSpec& tensor = spec.tensors[index];
  const auto label = [index] { return "tensor " + std::to_string(index); };
  if (tensor.shape.size() > kDimsMax)
    return refused(ErrorCode::kLimit, spec,
                   beyond(label() + ": number of dimensions", tensor.shape.size(), kDimsMax));
  if (takes_rows(spec.kind) && (tensor.shape.empty() || tensor.shape[0] != kAnyRows))
    return refused(ErrorCode::kInvalidArgument, spec,
                   label() + ": its first dimension must be left open");
  if (spec.kind == OpKind::kReducescatter && tensor.shape.empty())
    return refused(ErrorCode::kInvalidArgument, spec,
                   label() + ": it has no dimension along which to scatter");
  if (travels_in_pairs(tensor.user_dtype, tensor.dtype) &&
      (tensor.shape.empty() || tensor.shape.back() != 2))
    return refused(ErrorCode::kInvalidArgument, spec,
                   label() + ": complex numbers travel as pairs, so its last dimension must be 2");

  auto bytes = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    const std::int64_t dim = tensor.shape[i];
    if (i == 0 && dim == kAnyRows && takes_rows(spec.kind)) continue;
    if (dim < 0)
      return refused(ErrorCode::kInvalidArgument, spec,
                     label() + ": dimension " + std::to_string(i) + " is negative");
    if (dim > kTensorBytesMax)
      return refused(ErrorCode::kLimit, spec,
                     beyond(label() + ": size of dimension " + std::to_string(i),
                            static_cast<std::uint64_t>(dim), kTensorBytesMax));
    // An overflow is clamped to the limit + 1; a later dimension of 0 still makes the tensor empty.
    if (__builtin_mul_overflow(bytes, dim, &bytes) || bytes > kTensorBytesMax)
      bytes = kTensorBytesMax + 1;
  }
  if (bytes > kTensorBytesMax)
    return refused(ErrorCode::kLimit, spec,
                   label() + ": its bytes exceed the limit of " + std::to_string(kTensorBytesMax));
  return {};
}

Status check_float8(const RequestSpec& spec) {
  if (!reduces(spec.kind) || traits_of(spec.backend).reduces_float8) return {};
  for (const TensorSpec& tensor : spec.tensors) {
    if (is_float8(tensor.dtype))
      return refused(ErrorCode::kUnsupported, spec,
                     "the CPU does not reduce " + std::string(dtype_name(tensor.dtype)) +
                         "; convert the tensor to bfloat16, or reduce it on GPUs by NCCL 2.24 or "
                         "newer");
  }
  return {};
}

Status check_backend(const RequestSpec& spec) {
  if (spec.backend == BackendId::kNative) return {};
  const std::string name(backend_name(spec.backend));
  if (!moves_data(spec.kind))
    return refused(ErrorCode::kInvalidArgument, spec,
                   "it moves no data, so " + name + " has no part in it");
  if (spec.in_arena && traits_of(spec.backend).on_gpu)
    return refused(ErrorCode::kInvalidArgument, spec, "the arena is not GPU memory");
  return {};
}

Status check_wire_dtype(const RequestSpec& spec) {
  if (!spec.wire_dtype) return {};
  const std::string name(dtype_name(*spec.wire_dtype));
  if (spec.backend != BackendId::kNative)
    return refused(ErrorCode::kInvalidArgument, spec,
                   std::string(backend_name(spec.backend)) +
                       " takes no wire dtype, but the operation has " + name);
  if (!is_half(*spec.wire_dtype))
    return refused(ErrorCode::kInvalidArgument, spec,
                   "its wire dtype is " + name + "; it should be float16 or bfloat16");
  const bool adds = spec.op == ReduceOp::kSum || spec.op == ReduceOp::kAverage;
  if (spec.kind != OpKind::kAllreduce || !adds)
    return refused(ErrorCode::kInvalidArgument, spec,
                   "only the Sum and the Average of an allreduce travel as " + name);
  for (const TensorSpec& tensor : spec.tensors) {
    if (tensor.dtype != DType::kFloat32)
      return refused(ErrorCode::kInvalidArgument, spec,
                     "only float32 tensors travel as " + name + ", not " +
                         std::string(dtype_name(tensor.dtype)));
  }
  return {};
}

Status check_streams(const RequestSpec& spec) {
  if (spec.streams == 0) return {};
  if (spec.streams > kPairStreamsMax)
    return refused(ErrorCode::kLimit, spec, beyond("streams", spec.streams, kPairStreamsMax));
  if (spec.kind != OpKind::kAllreduce || spec.backend != BackendId::kNative)
    return refused(ErrorCode::kInvalidArgument, spec,
                   "only an allreduce by ciranda's own backend takes a number of streams");
  return {};
}

Status check_sizes(const RequestSpec& spec) {
  if (spec.name.size() > kNameBytesMax)
    return refused(ErrorCode::kLimit, spec,
                   beyond("bytes of the name", spec.name.size(), kNameBytesMax));
  if (spec.rule.size() > kRuleBytesMax)
    return refused(ErrorCode::kLimit, spec,
                   beyond("bytes of the update rule", spec.rule.size(), kRuleBytesMax));
  if (spec.tensors.size() > kTensorsPerRequestMax)
    return refused(ErrorCode::kLimit, spec,
                   beyond("number of tensors", spec.tensors.size(), kTensorsPerRequestMax));
  if (spec.tensors.empty() == moves_data(spec.kind))
    return refused(ErrorCode::kInvalidArgument, spec,
                   spec.tensors.empty() ? "it needs a tensor" : "it takes no tensor");
  if (facts_of(spec.kind).tensors == TensorCount::kOne && spec.tensors.size() != 1)
    return refused(ErrorCode::kInvalidArgument, spec, "it takes exactly one tensor");
  return {};
}

// A membership operation belongs to the World and has no name; only it has members or removes.
Status check_membership(const RequestSpec& spec) {
  const auto invalid = [&](const char* sentence) {
    return refused(ErrorCode::kInvalidArgument, spec, sentence);
  };
  if (spec.members.empty() == (spec.kind == OpKind::kAddGroup))
    return invalid(spec.members.empty() ? "it needs a rank" : "it takes no list of ranks");
  if ((spec.removes != kWorldGroup) != (spec.kind == OpKind::kRemoveGroup))
    return invalid(spec.removes == kWorldGroup ? "the process set of all ranks cannot be removed"
                                               : "it removes no process set");
  if (!is_membership(spec.kind)) return {};
  if (!spec.name.empty()) return invalid("it takes no name");
  if (spec.group != kWorldGroup) return invalid("all ranks must submit it");
  Rank before = kNoRank;
  for (const Rank rank : spec.members) {
    if (rank <= before) return invalid("its ranks must ascend from 0, each once");
    before = rank;
  }
  if (before >= kRanksMax)
    return refused(ErrorCode::kLimit, spec,
                   beyond("rank", static_cast<std::uint64_t>(before), kRanksMax - 1));
  return {};
}

Status check_root(const RequestSpec& spec) {
  const bool has_root = facts_of(spec.kind).has_root;
  if (has_root ? spec.root < 0 : spec.root != kNoRank)
    return refused(ErrorCode::kInvalidArgument, spec,
                   has_root ? "it needs a root rank" : "it takes no root rank");
  if (spec.root >= kRanksMax)
    return refused(ErrorCode::kLimit, spec,
                   beyond("root rank", static_cast<std::uint64_t>(spec.root), kRanksMax - 1));
  if (spec.kind != OpKind::kSend) return {};
  if (!is_pair(spec.group) || pair_of(spec.group).from != spec.root)
    return refused(ErrorCode::kInvalidArgument, spec,
                   "its group is not the pair of its sender and its receiver");
  return {};
}

Status check_arithmetic(const RequestSpec& spec) {
  if (!std::isfinite(spec.prescale) || !std::isfinite(spec.postscale))
    return refused(ErrorCode::kInvalidArgument, spec, "a scale factor is not finite");
  if (!reduces(spec.kind) &&
      (spec.op != ReduceOp::kSum || spec.prescale != 1.0 || spec.postscale != 1.0))
    return refused(ErrorCode::kInvalidArgument, spec, "it takes neither op nor scale factors");
  return {};
}

Status check_adasum(const RequestSpec& spec) {
  if (spec.op != ReduceOp::kAdasum || !reduces(spec.kind)) return {};
  if (spec.kind != OpKind::kAllreduce || spec.in_arena)
    return refused(ErrorCode::kInvalidArgument, spec,
                   "Adasum is for an allreduce; use Average or Sum");
  if (traits_of(spec.backend).on_gpu)
    return refused(ErrorCode::kUnsupported, spec,
                   std::string(backend_name(spec.backend)) + " has no Adasum; pass CPU tensors");
  for (const TensorSpec& tensor : spec.tensors) {
    if (!is_floating(tensor.dtype))
      return refused(ErrorCode::kInvalidArgument, spec,
                     "Adasum is for floating point tensors, not " +
                         std::string(dtype_name(tensor.dtype)) + "; use Average or Sum");
  }
  return {};
}

Status check_arena(const RequestSpec& spec) {
  if (!spec.in_arena && !spec.rule.empty())
    return refused(ErrorCode::kInvalidArgument, spec, "only arena tensors take an update rule");
  if (!spec.in_arena && spec.arena_bytes != 0)
    return refused(ErrorCode::kInvalidArgument, spec, "only arena tensors have bytes in the arena");
  if (!spec.in_arena) return {};
  if (spec.kind != OpKind::kAllreduce)
    return refused(ErrorCode::kInvalidArgument, spec, "only allreduce runs in the arena");
  if (spec.arena_bytes > kArenaBytesMax)
    return refused(ErrorCode::kLimit, spec,
                   beyond("bytes in the arena", spec.arena_bytes, kArenaBytesMax));
  if (!spec.tensors.empty() && spec.arena_bytes % dtype_bytes(spec.tensors.front().dtype) != 0)
    return refused(ErrorCode::kInvalidArgument, spec, "its arena memory ends within an element");
  std::uint64_t rest = spec.arena_bytes;
  for (const TensorSpec& tensor : spec.tensors) {
    if (tensor.dtype != spec.tensors.front().dtype)
      return refused(ErrorCode::kInvalidArgument, spec, "its arena tensors differ in dtype");
    if (tensor_bytes(tensor) > rest)
      return refused(ErrorCode::kInvalidArgument, spec,
                     "its arena tensors are larger than its memory there");
    rest -= tensor_bytes(tensor);
  }
  return {};
}

}  // namespace

Status check_spec(const RequestSpec& spec) {
  CIRANDA_TRY(check_sizes(spec));
  CIRANDA_TRY(check_membership(spec));
  CIRANDA_TRY(check_root(spec));
  CIRANDA_TRY(check_arithmetic(spec));
  CIRANDA_TRY(check_adasum(spec));
  for (std::size_t i = 0; i < spec.tensors.size(); ++i) CIRANDA_TRY(check_tensor(spec, i));
  CIRANDA_TRY(check_backend(spec));
  CIRANDA_TRY(check_float8(spec));
  CIRANDA_TRY(check_wire_dtype(spec));
  CIRANDA_TRY(check_streams(spec));
  return check_arena(spec);
}

Status check_limits(const RequestSpec& spec, const Contribution& contribution) {
  CIRANDA_TRY(check_spec(spec));
  if (contribution.rows.size() > kTensorsPerRequestMax)
    return refused(ErrorCode::kLimit, spec,
                   beyond("number of rows", contribution.rows.size(), kTensorsPerRequestMax));
  for (const std::int64_t rows : contribution.rows) {
    if (rows < 0) return refused(ErrorCode::kInvalidArgument, spec, "a number of rows is negative");
    if (rows > kTensorBytesMax)
      return refused(ErrorCode::kLimit, spec,
                     beyond("rows", static_cast<std::uint64_t>(rows), kTensorBytesMax));
  }
  if (contribution.digest && contribution.rows.empty())
    return refused(ErrorCode::kInvalidArgument, spec, "only bytes with rows have a digest");
  const std::size_t bytes = frame_bytes_max(spec, contribution);
  if (bytes > kFrameBytesMax)
    return refused(ErrorCode::kLimit, spec,
                   beyond("bytes of its description", bytes, kFrameBytesMax));
  return {};
}

}  // namespace ciranda
