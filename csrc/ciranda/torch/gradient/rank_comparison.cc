#include "ciranda/torch/gradient/rank_comparison.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <sstream>
#include <utility>

#include "ciranda/torch/collective/collectives.h"
#include "ciranda/torch/gradient/digest.h"
#include "ciranda/torch/gradient/gradient_reducer.h"
#include "ciranda/torch/step/optimizer_checks.h"
#include "ciranda/torch/tensor/error.h"
#include "core/base/assert.h"

namespace ciranda {
namespace {

// The first two ranks of `among` that differ in line `row`. A rank without lines has joined.
struct Pair {
  Rank first, second;
  std::string of_first, of_second;
};
using Lines = std::vector<std::vector<std::string>>;  // by rank
std::optional<Pair> different(const Lines& all, const Group& among, std::size_t row,
                              std::size_t from) {
  CIRANDA_ASSERT(all.size() == among.ranks.size());
  std::optional<std::size_t> first;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    if (!first) first = rank;
    const std::string mine = all[*first][row].substr(from);
    const std::string theirs = all[rank][row].substr(from);
    if (mine != theirs) return Pair{among.ranks[*first], among.ranks[rank], mine, theirs};
  }
  return std::nullopt;
}

std::string of_ranks(const Pair& pair) {
  return "ranks " + std::to_string(pair.first) + " and " + std::to_string(pair.second);
}

}  // namespace

RankComparison::RankComparison(std::shared_ptr<const Communicator> among, std::string name,
                               bool apart)
    : among_(std::move(among)),
      name_(std::move(name) + "/compare"),
      apart_(apart),
      joins_(among_->engine->joins()) {}

void RankComparison::add(NamedParameters parameters) {
  step_ = 0;
  next_ = 1;
  if (!apart_) return;
  for (auto& [name, parameter] : parameters) {
    entries_.push_back({.name = std::move(name), .parameter = std::move(parameter)});
    entries_.back().left.renew(entries_.back().parameter);
  }
}

bool RankComparison::begin_step() {
  const std::uint64_t joins = among_->engine->joins();
  if (std::exchange(joins_, joins) != joins) {  // ranks have made different numbers of steps
    step_ = 0;
    next_ = 1;
    for (Entry& entry : entries_) entry.reason = std::max(entry.reason, kJoined);
  }
  return ++step_ == next_;
}

void RankComparison::end_step() {
  if (step_ + 1 != next_) return;
  for (Entry& entry : entries_) entry.left.renew(entry.parameter);
}

std::string RankComparison::compare(const std::string& way, GradientReducer* reducer) {
  std::uint64_t mine = mixed(std::hash<std::string>()(way), 0);
  for (Entry& entry : entries_) {
    const bool stamped = entry.reason == kNew || (entry.reason == kNone && step_ > 1);
    if (stamped && !entry.left.same(entry.parameter)) entry.reason = kWritten;
    mine = mixed(mine, entry.reason == kNone ? 0 : digest_of_values(entry.parameter));
  }
  bool alike = false;
  const auto ask = [&](const Engine::Look& look) { alike = all_say(mine, look); };
  reducer != nullptr ? reducer->wait_in_step(ask) : ask({});
  std::string told;
  if (!alike) {
    try {
      told = difference(texts_of_ranks(*among_, text(way), name_ + "/text"));
    } catch (...) {
      step_ = 0;  // the next step compares again
      next_ = 1;
      throw;
    }
  }
  way_is_new_ = false;
  for (Entry& entry : entries_) entry.reason = kNone;
  next_ *= 2;
  if (told.empty() || std::exchange(warned_, true)) return "";
  return told;
}

// Returns true if all ranks have the same `mine`. It uses a sum, to which ranks that have joined
// add zeros. Collective, blocking.
bool RankComparison::all_say(std::uint64_t mine, const Engine::Look& look) const {
  const Group& group = *among_->group;
  const at::Tensor digests = at::zeros({group.size()}, c10::ScalarType::Long);
  std::span<std::int64_t> all(digests.mutable_data_ptr<std::int64_t>(), group.ranks.size());
  all[static_cast<std::size_t>(group.index_of(among_->engine->rank()))] =
      static_cast<std::int64_t>(mine | 1U);
  allreduce(*among_, digests, digests, {.name = name_, .op = ReduceOp::kSum}, look);
  return std::all_of(all.begin(), all.end(), [&](std::int64_t theirs) {
    return theirs == 0 || static_cast<std::uint64_t>(theirs) == (mine | 1U);
  });
}

// Returns a line for the way and one for each parameter. Each line begins with the reason to
// compare it.
std::string RankComparison::text(const std::string& way) const {
  std::ostringstream lines;
  lines << static_cast<char>(way_is_new_ ? kNew : kNone) << way << '\n' << std::hex;
  for (const Entry& entry : entries_) {
    lines << static_cast<char>(entry.reason) << digest_of_values(entry.parameter) << '\n';
  }
  return lines.str();
}

// Describes the first difference of the ranks' texts that at least one rank has a reason to look
// for; empty if there is no such difference. A difference in something new throws.
std::string RankComparison::difference(const std::vector<std::string>& by_rank) const {
  Lines all;
  for (const std::string& text : by_rank) {
    std::istringstream lines(text);
    all.emplace_back();
    for (std::string line; std::getline(lines, line);) all.back().push_back(line);
    if (!all.back().empty()) all.back().resize(entries_.size() + 1, std::string(1, kNone));
  }
  const auto reason_of = [&](std::size_t row) {
    char reason = kNone;
    for (const auto& lines : all) {
      if (!lines.empty()) reason = std::max(reason, lines[row].front());
    }
    return reason;
  };
  if (const auto pair = different(all, *among_->group, 0, 1)) {
    const std::string both = "the ranks step differently: rank " + std::to_string(pair->first) +
                             " with " + pair->of_first + ", rank " + std::to_string(pair->second) +
                             " with " + pair->of_second;
    if (reason_of(0) == kNew) {
      refuse(both +
             "; make the same optimizer on every rank, or call broadcast_optimizer_state() "
             "before the first step");
    }
    return both + ", and their parameters drift apart";
  }
  std::string told;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const char reason = reason_of(i + 1);
    const auto pair = reason == kNone ? std::nullopt : different(all, *among_->group, i + 1, 1);
    if (!pair) continue;
    const std::string both =
        of_ranks(*pair) + " have different values of parameter '" + entries_[i].name + "'";
    if (reason == kNew) {
      refuse(both +
             "; call broadcast_parameters(model.state_dict(), root_rank=0) on every rank before "
             "the first step, and do not write to parameters on one rank only");
    }
    if (!told.empty()) continue;
    told =
        both + (reason == kWritten
                    ? ": code outside of step() has written to it, as nn.Embedding(max_norm=...) "
                      "does in forward, and the ranks drift apart; write the same on every rank, "
                      "after step(), or call broadcast_parameters() after writing"
                    : " after join(); call broadcast_parameters() and broadcast_optimizer_state() "
                      "with the rank that join() returns");
  }
  return told;
}

void RankComparison::refuse(const std::string& why) {
  throw Exception({.code = ErrorCode::kMismatch, .text = "DistributedOptimizer: " + why});
}

}  // namespace ciranda
