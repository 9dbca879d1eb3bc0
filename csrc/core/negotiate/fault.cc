#include "core/negotiate/fault.h"

#include <algorithm>
#include <string>

#include "core/negotiate/wording.h"
#include "core/wire/pair.h"

namespace ciranda {
namespace {

Error about(const PendingOp& op, ErrorCode code, const std::string& text, Rank rank = kNoRank) {
  return {.code = code,
          .text = op_label(*op.spec, op.occurrence) + ": " + text,
          .rank = rank,
          .tensor = op.spec->name};
}

bool goes_on_without(const RequestSpec& spec) {
  if (is_pair(spec.group)) return false;  // only one rank is left of it
  switch (facts_of(spec.kind).when_joined) {
    case WhenJoined::kRefused:
      return false;
    case WhenJoined::kArrived:
      return true;
    case WhenJoined::kZeros:
      return spec.op == ReduceOp::kSum || spec.op == ReduceOp::kAverage;
  }
  CIRANDA_UNREACHABLE();
}

// Returns an error if a rank that should provide shared memory for its host has none.
std::optional<Error> region_fault(const PendingOp& op) {
  for (std::size_t index = 0; index < op.contributions.size(); ++index) {
    if (op.contributions[index]->arena != kNoRegion) continue;
    const Rank rank = op.group().ranks[index];
    return about(op, ErrorCode::kSystem,
                 "rank " + std::to_string(rank) +
                     " cannot allocate the memory that the ranks on its host share",
                 rank);
  }
  return std::nullopt;
}

std::optional<Error> add_fault(const PendingOp& op, const GroupTable& groups) {
  const std::vector<Rank>& members = op.spec->members;
  const int size = groups.world()->size();
  if (members.back() >= size)
    return about(op, ErrorCode::kInvalidArgument,
                 "there is no rank " + std::to_string(members.back()) + " among " +
                     std::to_string(size) + " ranks");
  if (const auto same = groups.of_ranks(members))
    return about(op, ErrorCode::kInvalidArgument,
                 rank_list(members) + (members.size() == 1 ? " is" : " are") + " process set " +
                     std::to_string(same->id) +
                     " already; process sets must be unique, so use that one");
  if (groups.full())
    return about(
        op, ErrorCode::kLimit,
        std::to_string(kGroupsMax) + " process sets exist, which is the limit; remove one");
  return region_fault(op);
}

std::optional<Error> remove_fault(const PendingOp& op, const GroupTable& groups,
                                  const Readiness& pending) {
  const GroupId id = op.spec->removes;
  if (groups.find(id) == nullptr)
    return about(op, ErrorCode::kInvalidArgument,
                 "there is no process set " + std::to_string(id) + "; it may have been removed");
  if (const PendingOp* other = pending.oldest_of(id))
    return about(op, ErrorCode::kInvalidArgument,
                 op_label(*other->spec, other->occurrence) +
                     " is not finished; synchronize it on every member first");
  return std::nullopt;
}

std::optional<Error> root_fault(const PendingOp& op) {
  const Rank root = op.spec->root;
  if (!facts_of(op.spec->kind).has_root || op.group().contains(root)) return std::nullopt;
  if (op.spec->group == kWorldGroup)
    return about(op, ErrorCode::kInvalidArgument,
                 "there is no root rank " + std::to_string(root) + " among " +
                     std::to_string(op.group().size()) + " ranks");
  return about(op, ErrorCode::kInvalidArgument,
               "its root rank " + std::to_string(root) + " is not a member; the " +
                   (op.group().size() == 1 ? "only member is " : "members are ") +
                   rank_list(op.group().ranks));
}

// Returns true if one rank's rows of all tensors have at most kTensorBytesMax bytes.
bool rows_fit(const RequestSpec& spec, const std::vector<std::int64_t>& rows) {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const TensorSpec& tensor = spec.tensors[spec.kind == OpKind::kAllgather ? i : 0];
    const auto row_bytes =
        element_count(tensor.shape) * static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
    std::int64_t part = 0;
    if (__builtin_mul_overflow(rows[i], row_bytes, &part) || part > kTensorBytesMax - bytes)
      return false;
    bytes += part;
  }
  return true;
}

std::optional<Error> rows_fault(const PendingOp& op) {
  const RequestSpec& spec = *op.spec;
  const OpKind moves_as = runs_as(spec.kind);
  const std::size_t expected = moves_as == OpKind::kAllgather  ? spec.tensors.size()
                               : moves_as == OpKind::kAlltoall ? op.group().ranks.size()
                                                               : 0;
  for (std::size_t index = 0; index < op.contributions.size(); ++index) {
    if (!op.contributions[index]) continue;  // joined
    const std::vector<std::int64_t>& rows = op.contributions[index]->rows;
    if (rows.empty() && expected == 0) continue;
    const Rank rank = op.group().ranks[index];
    if (rows.empty() && spec.kind == OpKind::kScatter && rank == spec.root)
      return about(op, ErrorCode::kInvalidArgument,
                   "the splits of its root, rank " + std::to_string(rank) +
                       ", do not fit its tensor; the error on that rank says more",
                   rank);
    if (rows.size() != expected)
      return about(op, ErrorCode::kMismatch,
                   "rank " + std::to_string(rank) + " gave " + std::to_string(rows.size()) +
                       " row counts where " + std::to_string(expected) + " are needed",
                   rank);
    if (takes_rows(spec.kind) && !rows_fit(spec, rows))
      return about(op, ErrorCode::kLimit,
                   "rank " + std::to_string(rank) + " gave more rows than fit the limit of " +
                       std::to_string(kTensorBytesMax) + " bytes",
                   rank);
  }
  return std::nullopt;
}

}  // namespace

std::optional<Error> fault_of(const PendingOp& op, const std::vector<Rank>& joined,
                              const GroupTable& groups, const Readiness& pending) {
  if (!op.disagreements.empty()) {
    return Error{.code = ErrorCode::kMismatch,
                 .text = mismatch_text(op),
                 .rank = op.disagreements.front().rank,
                 .tensor = op.spec->name};
  }
  if (!joined.empty() && !goes_on_without(*op.spec))
    return about(op, ErrorCode::kUnsupported, joined_text(joined), joined.front());
  if (auto fault = root_fault(op)) return fault;
  if (auto fault = rows_fault(op)) return fault;
  if (is_pair(op.spec->group)) return region_fault(op);
  if (op.spec->kind == OpKind::kAddGroup) return add_fault(op, groups);
  if (op.spec->kind == OpKind::kRemoveGroup) return remove_fault(op, groups, pending);
  return std::nullopt;
}

}  // namespace ciranda
