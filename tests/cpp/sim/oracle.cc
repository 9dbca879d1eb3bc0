#include "sim/oracle.h"

#include <algorithm>
#include <utility>

namespace ciranda::sim {
namespace {

bool same_key(const RequestSpec& a, std::uint32_t a_occurrence, const RequestSpec& b,
              std::uint32_t b_occurrence) {
  return a.kind == b.kind && a.group == b.group && a.name == b.name && a_occurrence == b_occurrence;
}

bool is_one_of(const std::vector<Rank>& ranks, Rank rank) {
  return std::count(ranks.begin(), ranks.end(), rank) > 0;
}

bool changes_membership(const RequestSpec& spec) {
  return spec.kind == OpKind::kAddGroup || spec.kind == OpKind::kRemoveGroup ||
         spec.kind == OpKind::kJoin;
}

bool has_root(const RequestSpec& spec) {
  return spec.kind == OpKind::kBroadcast || spec.kind == OpKind::kGather ||
         spec.kind == OpKind::kScatter || spec.kind == OpKind::kReduce;
}

bool gives_rows_to_each_rank(const RequestSpec& spec) {
  return spec.kind == OpKind::kAlltoall || spec.kind == OpKind::kGather ||
         spec.kind == OpKind::kScatter;
}

double bytes_of_a_row(const TensorSpec& tensor) {
  auto bytes = static_cast<double>(dtype_bytes(tensor.dtype));
  for (std::size_t i = 1; i < tensor.shape.size(); ++i)
    bytes *= static_cast<double>(tensor.shape[i]);
  return bytes;
}

// For messages from a to b.
GroupId pair_number(Rank a, Rank b) {
  return (1u << 31) + 4096u * static_cast<GroupId>(a) + static_cast<GroupId>(b);
}

bool adds_up_without_a_rank(const RequestSpec& spec) {
  if (spec.kind == OpKind::kBarrier) return true;
  return spec.kind == OpKind::kAllreduce &&
         (spec.op == ReduceOp::kSum || spec.op == ReduceOp::kAverage);
}

}  // namespace

Oracle::Oracle(int size, std::size_t cache_entries) : size_(size), cache_entries_(cache_entries) {
  for (Rank rank = 0; rank < size; ++rank) groups_[kWorldGroup].push_back(rank);
  for (Rank a = 0; a < size; ++a)
    for (Rank b = 0; b < size; ++b)
      if (a != b) pairs_[pair_number(a, b)] = {std::min(a, b), std::max(a, b)};
}

std::optional<std::vector<Expected>> Oracle::handle(Rank from, const Frame& frame) {
  if (is_one_of(departed_, from)) return std::nullopt;
  if (frame.kind == FrameKind::kLeave) return leave(from);
  Out out;
  for (const Request& request : frame.requests) {
    if (request.spec) {
      renew(*request.spec);
      if (!submit(from, *request.spec, request.occurrence, request.contribution, out))
        return std::nullopt;
      continue;
    }
    const auto known = std::find_if(cache_.begin(), cache_.end(),
                                    [&](const auto& e) { return e.first == request.cache_id; });
    if (known != cache_.end()) {
      const RequestSpec spec = known->second;
      renew(spec);
      if (!submit(from, spec, request.occurrence, request.contribution, out)) return std::nullopt;
    } else if (request.cache_id < next_id_) {
      Expected again;
      again.verdict = Response::Verdict::kResubmit;
      again.rank = from;
      again.token = request.contribution.token;
      out.push_back(again);
    } else {
      return std::nullopt;
    }
  }
  return out;
}

std::optional<std::vector<Expected>> Oracle::leave(Rank from) {
  Out out;
  departed_.push_back(from);
  joined_.clear();
  std::vector<Op> others;
  for (const Op& op : pending_) {
    if (!is_one_of(members(op.spec), from)) {
      others.push_back(op);
      continue;
    }
    out.push_back(
        error(op.spec, op.occurrence, ErrorCode::kRankLeft, first_departed(members(op.spec))));
    out.back().contributions = op.contributions;
  }
  pending_ = others;
  return out;
}

bool Oracle::submit(Rank from, const RequestSpec& spec, std::uint32_t counted,
                    const Contribution& contribution, Out& out) {
  const std::uint32_t occurrence = spec.kind == OpKind::kJoin ? 0 : counted;
  const auto answer = [&](ErrorCode code, Rank rank) {
    out.push_back(error(spec, occurrence, code, rank));
    out.back().contributions[from] = contribution;
    return true;
  };
  if (!has_group(spec) || !is_one_of(members(spec), from))
    return answer(ErrorCode::kInvalidArgument, from);
  if (const Rank departed = first_departed(members(spec)); departed != kNoRank)
    return answer(ErrorCode::kRankLeft, departed);
  if (joined_.contains(from)) return answer(ErrorCode::kInvalidArgument, from);
  auto op = std::find_if(pending_.begin(), pending_.end(), [&](const Op& other) {
    return same_key(other.spec, other.occurrence, spec, occurrence);
  });
  if (op == pending_.end()) {
    op = pending_.insert(pending_.end(), Op{spec, occurrence, {}, kNoRank});
  } else if (op->contributions.contains(from)) {
    return false;
  }
  op->contributions[from] = contribution;
  if (op->differs == kNoRank && !(spec == op->spec)) op->differs = from;
  if (spec.kind == OpKind::kJoin) {
    join(from, out);
  } else if (missing(*op).empty()) {
    const Op complete = *op;
    pending_.erase(op);
    finish(complete, out);
  }
  return true;
}

void Oracle::join(Rank from, Out& out) {
  joined_.insert(from);
  std::vector<Op> complete;
  for (const Op& op : pending_)
    if (op.spec.kind != OpKind::kJoin && missing(op).empty()) complete.push_back(op);
  if (static_cast<int>(joined_.size()) == size_) {
    for (const Op& op : pending_)
      if (op.spec.kind == OpKind::kJoin) complete.push_back(op);
  }
  for (const Op& op : complete) {
    std::erase_if(pending_, [&](const Op& other) {
      return same_key(op.spec, op.occurrence, other.spec, other.occurrence);
    });
    finish(op, out);
  }
  if (static_cast<int>(joined_.size()) < size_) return;
  out.back().last_joined = from;
  joined_.clear();
}

std::vector<Rank> Oracle::missing(const Op& op) const {
  std::vector<Rank> ranks;
  for (const Rank rank : members(op.spec))
    if (!op.contributions.contains(rank) && !joined_.contains(rank)) ranks.push_back(rank);
  return ranks;
}

std::vector<Rank> Oracle::joined_without(const Op& op) const {
  std::vector<Rank> ranks;
  for (const Rank rank : members(op.spec))
    if (!op.contributions.contains(rank)) ranks.push_back(rank);
  return ranks;
}

void Oracle::finish(const Op& op, Out& out) {
  if (const auto wrong = fault(op)) {
    out.push_back(error(op.spec, op.occurrence, wrong->first, wrong->second));
    out.back().contributions = op.contributions;
    return;
  }
  Expected run;
  run.index = next_index_++;
  run.spec = op.spec;
  run.members = members(op.spec);
  run.occurrence = op.occurrence;
  run.contributions = op.contributions;
  run.joined = joined_without(op);
  if (changes_membership(op.spec)) {
    change_groups(run);
  } else {
    if (cache_entries_ > 0 && known(op.spec) == kNoCacheId) {
      if (cache_.size() == cache_entries_) cache_.pop_front();
      cache_.emplace_back(next_id_++, op.spec);
    }
    renew(op.spec);
    run.cache_id = known(op.spec);
  }
  out.push_back(run);
}

std::optional<std::pair<ErrorCode, Rank>> Oracle::fault(const Op& op) const {
  const RequestSpec& spec = op.spec;
  if (op.differs != kNoRank) return std::pair(ErrorCode::kMismatch, op.differs);
  const std::vector<Rank> joined = joined_without(op);
  if (!joined.empty() && !adds_up_without_a_rank(spec))
    return std::pair(ErrorCode::kUnsupported, joined.front());
  const std::pair invalid(ErrorCode::kInvalidArgument, kNoRank);
  if (has_root(spec) && !is_one_of(members(spec), spec.root)) return invalid;
  if (const auto wrong = wrong_rows(op)) return wrong;
  if (spec.kind == OpKind::kAddGroup) {
    if (spec.members.back() >= size_) return invalid;
    for (const auto& [id, ranks] : groups_)
      if (ranks == spec.members) return invalid;
  }
  if (const Rank rank = without_memory(op); rank != kNoRank)
    return std::pair(ErrorCode::kSystem, rank);
  if (spec.kind == OpKind::kRemoveGroup) {
    if (!groups_.contains(spec.removes)) return invalid;
    for (const Op& other : pending_)
      if (other.spec.group == spec.removes) return invalid;
  }
  return std::nullopt;
}

void Oracle::change_groups(Expected& run) {
  if (run.spec.kind == OpKind::kAddGroup) {
    run.changed = next_group_++;
    groups_[*run.changed] = run.spec.members;
  }
  if (run.spec.kind == OpKind::kRemoveGroup) {
    run.changed = run.spec.removes;
    groups_.erase(run.spec.removes);
    std::erase_if(cache_, [&](const auto& e) { return e.second.group == run.spec.removes; });
  }
}

std::optional<std::pair<ErrorCode, Rank>> Oracle::wrong_rows(const Op& op) const {
  const RequestSpec& spec = op.spec;
  std::size_t expected = 0;
  if (spec.kind == OpKind::kAllgather) expected = spec.tensors.size();
  if (gives_rows_to_each_rank(spec)) expected = members(spec).size();
  for (const auto& [rank, contribution] : op.contributions) {
    const auto& rows = contribution.rows;
    if (spec.kind == OpKind::kScatter && rank == spec.root && rows.empty())
      return std::pair(ErrorCode::kInvalidArgument, rank);
    if (rows.size() != expected) return std::pair(ErrorCode::kMismatch, rank);
    double bytes = 0;  // far below 2^53, so it is exact
    for (std::size_t i = 0; i < rows.size(); ++i)
      bytes += static_cast<double>(rows[i]) *
               bytes_of_a_row(spec.tensors[spec.kind == OpKind::kAllgather ? i : 0]);
    if (bytes > static_cast<double>(kTensorBytesMax)) return std::pair(ErrorCode::kLimit, rank);
  }
  return std::nullopt;
}

// The first that has none for what the members on its host share.
Rank Oracle::without_memory(const Op& op) {
  if (op.spec.kind != OpKind::kAddGroup && op.spec.kind != OpKind::kSend) return kNoRank;
  for (const auto& [rank, contribution] : op.contributions)
    if (contribution.arena.segment == UINT32_MAX) return rank;
  return kNoRank;
}

Expected Oracle::error(const RequestSpec& spec, std::uint32_t occurrence, ErrorCode code,
                       Rank rank) {
  Expected expected;
  expected.verdict = Response::Verdict::kError;
  expected.index = next_index_++;
  expected.spec = spec;
  if (has_group(spec)) expected.members = members(spec);
  expected.occurrence = occurrence;
  expected.code = code;
  expected.rank = rank;
  return expected;
}

Rank Oracle::first_departed(const std::vector<Rank>& members) const {
  for (const Rank rank : departed_)
    if (is_one_of(members, rank)) return rank;
  return kNoRank;
}

void Oracle::renew(const RequestSpec& spec) {
  const auto found = std::find_if(cache_.begin(), cache_.end(),
                                  [&](const auto& entry) { return entry.second == spec; });
  if (found == cache_.end()) return;
  const auto entry = *found;
  cache_.erase(found);
  cache_.push_back(entry);
}

CacheId Oracle::known(const RequestSpec& spec) const {
  for (const auto& [id, other] : cache_)
    if (other == spec) return id;
  return kNoCacheId;
}

std::vector<Oracle::Waiting> Oracle::waiting() const {
  std::vector<Waiting> waiting;
  for (const Op& op : pending_) waiting.push_back({op.spec, op.occurrence, missing(op)});
  return waiting;
}

std::string Oracle::difference(const Expected& expected, const Response& response, int size) {
  if (response.verdict != expected.verdict) return "verdict";
  if (response.verdict == Response::Verdict::kResubmit) {
    if (response.resubmit_rank != expected.rank) return "rank to resubmit";
    return response.resubmit_token == expected.token ? "" : "token to resubmit";
  }
  if (response.index != expected.index) return "index";
  if (response.spec == nullptr || !(*response.spec == expected.spec)) return "spec";
  if (response.occurrence != expected.occurrence) return "occurrence";
  if (response.cache_id != expected.cache_id) return "cache id";
  if ((response.group == nullptr) != expected.members.empty()) return "whether there is a group";
  if (response.group && response.group->id != expected.spec.group) return "group";
  if (response.group && response.group->ranks != expected.members) return "members";
  if (response.joined != expected.joined) return "joined ranks";
  if ((response.changed != nullptr) != expected.changed.has_value()) return "whether groups change";
  if (response.changed && response.changed->id != *expected.changed) return "changed group";
  if (response.changed && expected.spec.kind == OpKind::kAddGroup &&
      response.changed->ranks != expected.spec.members)
    return "members of the new group";
  if (response.last_joined != expected.last_joined) return "the last that joined";
  for (Rank rank = 0; rank < size; ++rank) {
    const Contribution* actual = contribution_of(response, rank);
    const auto wanted = expected.contributions.find(rank);
    if ((actual != nullptr) != (wanted != expected.contributions.end())) return "contributors";
    if (actual != nullptr && !(*actual == wanted->second)) return "contribution";
  }
  if (response.verdict == Response::Verdict::kRun) return response.error ? "error" : "";
  if (!response.error || response.error->code != expected.code) return "error code";
  if (response.error->rank != expected.rank) return "rank at fault";
  if (response.error->tensor != expected.spec.name) return "tensor of the error";
  const std::string kind(op_kind_name(expected.spec.kind));
  if (!response.error->text.starts_with(kind)) return "kind in the error text";
  if (response.error->text.find(expected.spec.name) == std::string::npos) return "error text";
  if (expected.spec.kind == OpKind::kSend) {
    const GroupId pair = expected.spec.group - pair_number(0, 0);
    const std::string ends =
        " from rank " + std::to_string(pair / 4096) + " to rank " + std::to_string(pair % 4096);
    if (response.error->text.find(ends) == std::string::npos) return "ranks of the message";
  }
  return "";
}

}  // namespace ciranda::sim
