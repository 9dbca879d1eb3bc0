#include "core/negotiate/aggregator.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/assert.h"
#include "core/negotiate/wording.h"

namespace ciranda {
namespace {

std::vector<std::byte> encoded(const Frame& frame) {
  std::vector<std::byte> bytes;
  encode(frame, bytes);
  return bytes;
}

// Packs `items` into as few frames of `kind` as the limits allow and calls `each` with each frame.
template <typename Item, typename Fn>
void in_frames(FrameKind kind, int host, std::vector<Item> Frame::*where, std::vector<Item> items,
               Fn each) {
  Frame frame{.kind = kind, .host = host};
  std::size_t bytes = kFrameHeaderBytes;
  for (Item& item : items) {
    const std::size_t more = encoded_bytes(item);
    if (bytes + more > kFrameBytesMax || (frame.*where).size() == kRequestsPerFrameMax) {
      each(encoded(frame));
      (frame.*where).clear();
      bytes = kFrameHeaderBytes;
    }
    (frame.*where).push_back(std::move(item));
    bytes += more;
  }
  if (!(frame.*where).empty()) each(encoded(frame));
}

}  // namespace

Aggregator::Aggregator(const Hosts& hosts, int host, const Negotiator& negotiator,
                       std::uint64_t patience)
    : hosts_(hosts),
      host_(host),
      negotiator_(negotiator),
      patience_(patience),
      alone_(local_ranks().size()),
      reported_alone_(hosts.size()) {}

// -------------------------------------------------------------------------------------------
// Frames of this host's ranks

void Aggregator::submit(Rank from, std::span<const std::byte> frame, std::uint64_t tick) {
  const auto at = std::find(local_ranks().begin(), local_ranks().end(), from);
  CIRANDA_ASSERT(at != local_ranks().end());
  const auto local = static_cast<std::size_t>(at - local_ranks().begin());
  const bool sound = decode_frame(frame, scratch_).ok();
  if (sound && scratch_.kind == FrameKind::kRequests) {
    for (Request& request : scratch_.requests) hold(local, request, tick);
    send_alone();
    return;
  }
  if (sound && scratch_.kind == FrameKind::kLeave) {
    // The Requests that this rank sent before must not follow its leave frame.
    review(tick, /*all=*/true);
    send_alone();
    const Status reported = report(tick);
    CIRANDA_ASSERT(reported.ok());  // each operation is reported once
    aggregates_ = false;
  }
  forward(from, {frame.begin(), frame.end()});
}

void Aggregator::hold(std::size_t local, Request& request, std::uint64_t tick) {
  const KnownOp op{request.cache_id, request.occurrence};
  const bool is_known = !request.spec.has_value() && request.contribution.rows.empty();
  const Group* const group = is_known ? may_aggregate(op) : nullptr;
  if (group == nullptr || !group->contains(local_ranks()[local])) {
    alone_[local].push_back(std::move(request));
    return;
  }
  const auto [place, is_first] = submitted_.try_emplace(op);
  Submitted& submitted = place->second;
  if (is_first) {
    submitted.contributions.resize(local_ranks().size());
    submitted.members = group->hosts[static_cast<std::size_t>(host_)].size();
    submitted.since_tick = tick;
  } else if (submitted.contributions[local].has_value()) {
    alone_[local].push_back(std::move(request));  // sent twice: the negotiators refuse it
    return;
  }
  submitted.contributions[local] = std::move(request.contribution);
  ++submitted.ranks;
  if (complete(submitted)) complete_here_.push_back({.op = op});
}

void Aggregator::send_alone() {
  for (std::size_t local = 0; local < alone_.size(); ++local) {
    in_frames(FrameKind::kRequests, kAllHosts, &Frame::requests, std::exchange(alone_[local], {}),
              [&](auto bytes) { forward(local_ranks()[local], std::move(bytes)); });
  }
}

void Aggregator::forward(Rank from, std::vector<std::byte> bytes) {
  if (orders()) return put_in_order(from, std::move(bytes));
  outbox_.push_back({from, std::move(bytes)});
}

// Reports the operations that all members on this host have submitted.
Status Aggregator::report(std::uint64_t tick) {
  if (orders()) {
    for (const ReadyOp& ready : std::exchange(complete_here_, {})) {
      CIRANDA_TRY(count_report(host_, ready.op, tick));
    }
    return {};
  }
  in_frames(FrameKind::kReady, host_, &Frame::ready, std::exchange(complete_here_, {}),
            [&](auto bytes) { forward(local_ranks().front(), std::move(bytes)); });
  return {};
}

// -------------------------------------------------------------------------------------------
// Frames of other hosts, and the order of the job

Status Aggregator::arrive(Rank from, std::span<const std::byte> frame, std::uint64_t tick) {
  if (!orders()) return deliver(from, {frame.begin(), frame.end()});
  if (kind_of(frame) != FrameKind::kReady) {
    put_in_order(from, {frame.begin(), frame.end()});
    return {};
  }
  if (const Status decoded = decode_frame(frame, scratch_); !decoded) {
    return violation(from, decoded.error().text);
  }
  const auto host = static_cast<std::size_t>(scratch_.host);
  if (scratch_.host == kAllHosts || host >= hosts_.size() || hosts_[host].front() != from) {
    return violation(from, "it reports for a host of which it is not the first rank");
  }
  for (const ReadyOp& ready : scratch_.ready) {
    CIRANDA_TRY(count_report(scratch_.host, ready.op, tick));
  }
  return {};
}

Status Aggregator::count_report(int host, const KnownOp& op, std::uint64_t tick) {
  const auto index = static_cast<std::size_t>(host);
  const Group* const group = may_aggregate(op);
  if (group == nullptr) {
    reported_alone_[index].push_back({.op = op});
    return {};
  }
  if (group->hosts[index].empty()) {
    return violation(
        hosts_[index].front(),
        "its host has no member of the operation with the number " + std::to_string(op.cache_id));
  }
  const auto [place, is_first] = reported_.try_emplace(op);
  Reported& reported = place->second;
  if (is_first) {
    reported.by.resize(hosts_.size());
    reported.with_members = static_cast<std::size_t>(
        std::count_if(group->hosts.begin(), group->hosts.end(),
                      [](const std::vector<Rank>& members) { return !members.empty(); }));
    reported.since_tick = tick;
  }
  if (reported.by[index]) {
    return violation(hosts_[index].front(), "it reported the operation with the number " +
                                                std::to_string(op.cache_id) + " twice");
  }
  reported.by[index] = true;
  if (++reported.hosts < reported.with_members) return {};
  reported_.erase(place);
  complete_everywhere_.push_back({.op = op});
  return {};
}

void Aggregator::order_complete() {
  const Rank self = local_ranks().front();
  const auto order = [&](auto bytes) {
    outbox_.push_back({self, bytes});
    const Status delivered = deliver(self, std::move(bytes));
    CIRANDA_ASSERT(delivered.ok());  // host 0 has reported its part of them
  };
  in_frames(FrameKind::kReady, kAllHosts, &Frame::ready, std::exchange(complete_everywhere_, {}),
            order);
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    in_frames(FrameKind::kReady, static_cast<int>(host), &Frame::ready,
              std::exchange(reported_alone_[host], {}), order);
  }
}

void Aggregator::put_in_order(Rank from, std::vector<std::byte> bytes) {
  if (kind_of(bytes) == FrameKind::kLeave) {
    // The operations that the rank has submitted come before its leave frame.
    review(0, /*all=*/true);
    order_complete();
    aggregates_ = false;
  }
  outbox_.push_back({from, bytes});
  const Status delivered = deliver(from, std::move(bytes));
  CIRANDA_ASSERT(delivered.ok());  // only a ready frame can be refused
}

// -------------------------------------------------------------------------------------------
// Both

Status Aggregator::flush(std::uint64_t tick, bool caught_up) {
  const bool news = !reviewed_ && caught_up && inbox_.empty();
  if (news || tick >= next_review_tick_) {
    review(tick, /*all=*/false);
    reviewed_ = reviewed_ || news;
    next_review_tick_ = tick + patience_ / 2;
  }
  send_alone();
  CIRANDA_TRY(report(tick));
  order_complete();
  return {};
}

// Moves the held Requests and reports that must not wait any more, or all of them, to the lists of
// those that are sent alone.
void Aggregator::review(std::uint64_t tick, bool all) {
  const auto waits_in_vain = [&](const KnownOp& op, std::uint64_t since_tick) {
    return all || !may_aggregate(op) || tick - since_tick >= patience_;
  };
  for (auto op = submitted_.begin(); op != submitted_.end();) {
    Submitted& submitted = op->second;
    if (complete(submitted) || !waits_in_vain(op->first, submitted.since_tick)) {
      ++op;
      continue;
    }
    for (std::size_t local = 0; local < submitted.contributions.size(); ++local) {
      if (!submitted.contributions[local]) continue;
      alone_[local].push_back({.cache_id = op->first.cache_id,
                               .occurrence = op->first.occurrence,
                               .contribution = *std::move(submitted.contributions[local])});
    }
    op = submitted_.erase(op);
  }
  for (auto op = reported_.begin(); op != reported_.end();) {
    if (!waits_in_vain(op->first, op->second.since_tick)) {
      ++op;
      continue;
    }
    for (std::size_t host = 0; host < hosts_.size(); ++host) {
      if (op->second.by[host]) reported_alone_[host].push_back({.op = op->first});
    }
    op = reported_.erase(op);
  }
}

bool Aggregator::holds() const {
  return !reported_.empty() || std::any_of(submitted_.begin(), submitted_.end(),
                                           [this](const auto& op) { return !complete(op.second); });
}

// Adds the contributions of this host's members. An operation that no rank here has submitted
// passes: either it has no member here, or the negotiators refuse the frame. The aggregator cannot
// tell, because its negotiator may not know the operation yet.
Status Aggregator::add_contributions(Rank from, ReadyOp& ready) {
  ready.contributions.clear();
  ready.local_ranks.clear();
  const auto op = submitted_.find(ready.op);
  if (op == submitted_.end()) return {};
  Submitted& submitted = op->second;
  if (!complete(submitted)) {
    return violation(from, "it reports the operation with the number " +
                               std::to_string(ready.op.cache_id) +
                               " as ready, but this host has not reported that operation");
  }
  for (std::size_t local = 0; local < submitted.contributions.size(); ++local) {
    if (!submitted.contributions[local]) continue;
    ready.contributions.push_back(*std::move(submitted.contributions[local]));
    if (submitted.members < local_ranks().size())
      ready.local_ranks.push_back(static_cast<int>(local));
  }
  submitted_.erase(op);
  return {};
}

// Puts a frame into the inbox, which goes to this host's log. Ready operations get the
// contributions of this host's members.
Status Aggregator::deliver(Rank from, std::vector<std::byte> bytes) {
  if (kind_of(bytes) != FrameKind::kReady) {
    reviewed_ = false;
    inbox_.push_back({from, std::move(bytes)});
    return {};
  }
  Frame frame;
  if (const Status decoded = decode_frame(bytes, frame); !decoded) {
    return violation(from, decoded.error().text);
  }
  if (frame.host != kAllHosts) reviewed_ = false;
  if (frame.host == kAllHosts || frame.host == host_) {
    for (ReadyOp& ready : frame.ready) CIRANDA_TRY(add_contributions(from, ready));
  }
  in_frames(FrameKind::kReady, frame.host, &Frame::ready, std::move(frame.ready), [&](auto whole) {
    inbox_.push_back({from, std::move(whole)});
  });
  return {};
}

}  // namespace ciranda
