#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ciranda {

// What a Request asks for. The values are on the wire: append only.
enum class OpKind : std::uint8_t {
  kAllreduce = 0,
  kBroadcast = 1,
  kAllgather = 2,
  kAlltoall = 3,
  kReducescatter = 4,
  kBarrier = 5,
};
inline constexpr int kOpKindCount = 6;

// How many tensors an operation has.
enum class TensorCount : std::uint8_t { kNone, kOne, kMany };

// In what kinds differ, as far as agreement is concerned.
struct OpKindFacts {
  OpKind kind = OpKind::kAllreduce;
  std::string_view name;
  TensorCount tensors = TensorCount::kMany;  // kNone: it moves no data
  bool has_root = false;
  bool takes_rows = false;  // each rank's may differ: they travel in its Contribution
  bool reduces = false;     // takes an op and scale factors
  bool fuses = false;       // tensors of several run as one operation
};

inline constexpr std::array<OpKindFacts, kOpKindCount> kOpKinds = {{
    {.kind = OpKind::kAllreduce, .name = "allreduce", .reduces = true, .fuses = true},
    {.kind = OpKind::kBroadcast, .name = "broadcast", .has_root = true, .fuses = true},
    {.kind = OpKind::kAllgather, .name = "allgather", .takes_rows = true},
    {.kind = OpKind::kAlltoall,
     .name = "alltoall",
     .tensors = TensorCount::kOne,
     .takes_rows = true},
    {.kind = OpKind::kReducescatter, .name = "reducescatter", .reduces = true},
    {.kind = OpKind::kBarrier, .name = "barrier", .tensors = TensorCount::kNone},
}};

constexpr const OpKindFacts& facts_of(OpKind kind) {
  return kOpKinds[static_cast<std::size_t>(kind)];
}
constexpr std::string_view op_kind_name(OpKind kind) {
  return facts_of(kind).name;
}
constexpr bool moves_data(OpKind kind) {
  return facts_of(kind).tensors != TensorCount::kNone;
}
constexpr bool takes_rows(OpKind kind) {
  return facts_of(kind).takes_rows;
}
constexpr bool reduces(OpKind kind) {
  return facts_of(kind).reduces;
}

// By value: a row out of its place does not compile.
constexpr bool rows_are_in_their_places() {
  for (std::size_t i = 0; i < kOpKinds.size(); ++i) {
    if (static_cast<std::size_t>(kOpKinds[i].kind) != i || kOpKinds[i].name.empty()) return false;
  }
  return true;
}
static_assert(rows_are_in_their_places());

}  // namespace ciranda
