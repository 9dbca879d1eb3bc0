#include "sim/oracle.h"

#include <algorithm>

namespace ciranda::sim {
namespace {

bool same_key(const RequestSpec& a, std::uint32_t a_occurrence, const RequestSpec& b,
              std::uint32_t b_occurrence) {
  return a.kind == b.kind && a.name == b.name && a_occurrence == b_occurrence;
}

}  // namespace

std::optional<std::vector<Expected>> Oracle::handle(Rank from, const Frame& frame) {
  if (std::count(departed_.begin(), departed_.end(), from) > 0) return std::nullopt;
  std::vector<Expected> out;
  if (frame.kind == FrameKind::kLeave) {
    departed_.push_back(from);
    for (const Op& op : pending_) {
      Expected gone = error(op.spec, op.occurrence, ErrorCode::kRankLeft, departed_.front());
      gone.contributions = op.contributions;
      out.push_back(gone);
    }
    pending_.clear();
    return out;
  }
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

bool Oracle::submit(Rank from, const RequestSpec& spec, std::uint32_t occurrence,
                    const Contribution& contribution, std::vector<Expected>& out) {
  const auto answer = [&](ErrorCode code, Rank rank) {
    out.push_back(error(spec, occurrence, code, rank));
    out.back().contributions[from] = contribution;
    return true;
  };
  if (!departed_.empty()) return answer(ErrorCode::kRankLeft, departed_.front());
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
  if (static_cast<int>(op->contributions.size()) < size_) return true;
  const Op complete = *op;
  pending_.erase(op);
  finish(complete, out);
  return true;
}

void Oracle::finish(const Op& op, std::vector<Expected>& out) {
  if (op.differs != kNoRank) {
    out.push_back(error(op.spec, op.occurrence, ErrorCode::kMismatch, op.differs));
  } else if (op.spec.root >= size_) {
    out.push_back(error(op.spec, op.occurrence, ErrorCode::kInvalidArgument, kNoRank));
  } else if (const auto rank = wrong_rows(op)) {
    out.push_back(error(op.spec, op.occurrence, ErrorCode::kMismatch, *rank));
  } else {
    Expected run;
    run.index = next_index_++;
    run.spec = op.spec;
    run.occurrence = op.occurrence;
    if (cache_entries_ > 0 && known(op.spec) == kNoCacheId) {
      if (cache_.size() == cache_entries_) cache_.pop_front();
      cache_.emplace_back(next_id_++, op.spec);
    }
    renew(op.spec);
    run.cache_id = known(op.spec);
    out.push_back(run);
  }
  out.back().contributions = op.contributions;
}

std::optional<Rank> Oracle::wrong_rows(const Op& op) const {
  std::size_t expected = 0;
  if (op.spec.kind == OpKind::kAllgather) expected = op.spec.tensors.size();
  if (op.spec.kind == OpKind::kAlltoall) expected = static_cast<std::size_t>(size_);
  for (const auto& [rank, contribution] : op.contributions)
    if (contribution.rows.size() != expected) return rank;
  return std::nullopt;
}

Expected Oracle::error(const RequestSpec& spec, std::uint32_t occurrence, ErrorCode code,
                       Rank rank) {
  Expected expected;
  expected.verdict = Response::Verdict::kError;
  expected.index = next_index_++;
  expected.spec = spec;
  expected.occurrence = occurrence;
  expected.code = code;
  expected.rank = rank;
  return expected;
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
  for (const Op& op : pending_) {
    Waiting& item = waiting.emplace_back(Waiting{op.spec, op.occurrence, {}});
    for (Rank rank = 0; rank < size_; ++rank)
      if (!op.contributions.contains(rank)) item.missing.push_back(rank);
  }
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
  if (response.error->text.find(expected.spec.name) == std::string::npos) return "error text";
  return "";
}

}  // namespace ciranda::sim
