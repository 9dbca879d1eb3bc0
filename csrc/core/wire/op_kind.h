#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace ciranda {

// The operation that a Request asks for. The values are on the wire: append only.
enum class OpKind : std::uint8_t {
  kAllreduce = 0,
  kBroadcast = 1,
  kAllgather = 2,
  kAlltoall = 3,
  kReducescatter = 4,
  kBarrier = 5,
  kAddGroup = 6,
  kRemoveGroup = 7,
  kJoin = 8,  // the rank has no more data for now
  kGather = 9,
  kScatter = 10,
  kReduce = 11,
  kSend = 12,  // both ranks of a pair submit it; the root sends
};
inline constexpr int kOpKindCount = 13;

// The number of tensors that an operation has.
enum class TensorCount : std::uint8_t { kNone, kOne, kMany };

// How an operation treats a member that has joined without submitting it.
enum class WhenJoined : std::uint8_t {
  kRefused,  // the operation fails
  kArrived,  // the member counts as arrived
  kZeros,    // the member adds zeros, to a Sum or an Average
};

// The facts about a kind that negotiation needs, and the kind that backends see.
struct OpKindFacts {
  OpKind kind = OpKind::kAllreduce;
  std::string_view name;
  TensorCount tensors = TensorCount::kMany;  // kNone: the kind moves no data
  bool has_root = false;
  bool takes_rows = false;  // row counts may differ by rank and travel in the Contribution
  bool reduces = false;     // takes an op and scale factors
  bool fuses = false;       // tensors of several operations may run as one
  WhenJoined when_joined = WhenJoined::kRefused;
  // The kind changes who takes part instead of moving data. The World agrees on it; it has no name
  // and gets no cache number.
  bool is_membership = false;
  // The kind that backends run instead of this one, with the same layout of the data.
  std::optional<OpKind> runs_as = {};  // empty: the kind itself
};

inline constexpr std::array<OpKindFacts, kOpKindCount> kOpKinds = {{
    {.kind = OpKind::kAllreduce,
     .name = "allreduce",
     .reduces = true,
     .fuses = true,
     .when_joined = WhenJoined::kZeros},
    {.kind = OpKind::kBroadcast, .name = "broadcast", .has_root = true, .fuses = true},
    {.kind = OpKind::kAllgather, .name = "allgather", .takes_rows = true},
    {.kind = OpKind::kAlltoall,
     .name = "alltoall",
     .tensors = TensorCount::kOne,
     .takes_rows = true},
    {.kind = OpKind::kReducescatter, .name = "reducescatter", .reduces = true},
    {.kind = OpKind::kBarrier,
     .name = "barrier",
     .tensors = TensorCount::kNone,
     .when_joined = WhenJoined::kArrived},
    {.kind = OpKind::kAddGroup,
     .name = "add_process_set",
     .tensors = TensorCount::kNone,
     .is_membership = true},
    {.kind = OpKind::kRemoveGroup,
     .name = "remove_process_set",
     .tensors = TensorCount::kNone,
     .is_membership = true},
    {.kind = OpKind::kJoin, .name = "join", .tensors = TensorCount::kNone, .is_membership = true},
    {.kind = OpKind::kGather,
     .name = "gather",
     .tensors = TensorCount::kOne,
     .has_root = true,
     .takes_rows = true,
     .runs_as = OpKind::kAlltoall},
    {.kind = OpKind::kScatter,
     .name = "scatter",
     .tensors = TensorCount::kOne,
     .has_root = true,
     .takes_rows = true,
     .runs_as = OpKind::kAlltoall},
    {.kind = OpKind::kReduce,
     .name = "reduce",
     .has_root = true,
     .reduces = true,
     .runs_as = OpKind::kReducescatter},
    {.kind = OpKind::kSend,
     .name = "send",
     .tensors = TensorCount::kOne,
     .has_root = true,
     .fuses = true,
     .runs_as = OpKind::kBroadcast},
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
constexpr bool is_membership(OpKind kind) {
  return facts_of(kind).is_membership;
}
constexpr OpKind runs_as(OpKind kind) {
  return facts_of(kind).runs_as.value_or(kind);
}

// facts_of() indexes kOpKinds by the kind's value.
constexpr bool rows_are_in_their_places() {
  for (std::size_t i = 0; i < kOpKinds.size(); ++i) {
    if (static_cast<std::size_t>(kOpKinds[i].kind) != i || kOpKinds[i].name.empty()) return false;
  }
  return true;
}
static_assert(rows_are_in_their_places());

// A kind that stands in for another one must run as itself and move the same data.
constexpr bool backends_know_what_they_run() {
  for (const OpKindFacts& facts : kOpKinds) {
    const OpKindFacts& seen = facts_of(runs_as(facts.kind));
    if (seen.runs_as || seen.takes_rows != facts.takes_rows || seen.reduces != facts.reduces ||
        seen.fuses != facts.fuses) {
      return false;
    }
  }
  return true;
}
static_assert(backends_know_what_they_run());

}  // namespace ciranda
