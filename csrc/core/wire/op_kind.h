#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
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
  kAddGroup = 6,
  kRemoveGroup = 7,
  kJoin = 8,  // this rank has no more data for now
  kGather = 9,
  kScatter = 10,
  kReduce = 11,
  kSend = 12,  // of a pair: both ranks submit it, the root sends
};
inline constexpr int kOpKindCount = 13;

// How many tensors an operation has.
enum class TensorCount : std::uint8_t { kNone, kOne, kMany };

// What an operation makes of a member that has joined and not submitted it.
enum class WhenJoined : std::uint8_t {
  kRefused,  // it fails
  kArrived,  // the member counts as arrived
  kZeros,    // it adds zeros, to a Sum or an Average
};

// In what kinds differ, as far as agreement is concerned, and the one thing that backends are told.
struct OpKindFacts {
  OpKind kind = OpKind::kAllreduce;
  std::string_view name;
  TensorCount tensors = TensorCount::kMany;  // kNone: it moves no data
  bool has_root = false;
  bool takes_rows = false;  // each rank's may differ: they travel in its Contribution
  bool reduces = false;     // takes an op and scale factors
  bool fuses = false;       // tensors of several run as one operation
  WhenJoined when_joined = WhenJoined::kRefused;
  // Changes who takes part instead of moving data: agreed by the World, has no name and gets no
  // cache number.
  bool is_membership = false;
  // The kind that backends see, whose data lies in the same way: they know nothing of this one.
  std::optional<OpKind> runs_as = {};  // none: itself
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

// By value: a row out of its place does not compile.
constexpr bool rows_are_in_their_places() {
  for (std::size_t i = 0; i < kOpKinds.size(); ++i) {
    if (static_cast<std::size_t>(kOpKinds[i].kind) != i || kOpKinds[i].name.empty()) return false;
  }
  return true;
}
static_assert(rows_are_in_their_places());

// What a backend is told is a kind of its own, which moves the same data.
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
