#include "core/negotiate/negotiator.h"

#include <utility>

#include "core/base/assert.h"
#include "core/negotiate/attendance.h"
#include "core/negotiate/fault.h"
#include "core/negotiate/name_table.h"
#include "core/negotiate/readiness.h"
#include "core/negotiate/response_cache.h"
#include "core/negotiate/wording.h"

namespace ciranda {
class Negotiator::Impl {
 public:
  explicit Impl(const Options& options)
      : hosts_(options.hosts),
        host_(options.host),
        groups_(options.size, options.hosts),
        cache_(options.cache_entries, names_),
        readiness_(names_),
        in_flight_(static_cast<std::size_t>(options.size), 0) {}

  Status handle_frame(Rank from, std::span<const std::byte> bytes, std::uint64_t tick,
                      std::vector<Response>& out);
  CacheId known(const RequestSpec& spec) const { return cache_.find(spec); }
  const Group* may_aggregate(const KnownOp& op) const {
    const ResponseCache::Entry* entry = cache_.find(op.cache_id);
    return may_aggregate(entry, op.occurrence) ? entry->name->group.get() : nullptr;
  }
  std::vector<StalledOp> waiting() const;
  const GroupTable& groups() const { return groups_; }
  const Attendance& attendance() const { return attendance_; }
  std::size_t in_flight(Rank rank) const { return in_flight_[static_cast<std::size_t>(rank)]; }

 private:
  // A Request after the lookup of its spec, name and group.
  struct Known {
    const std::shared_ptr<const RequestSpec>& spec;
    NameEntry& name;
    std::uint32_t occurrence;
  };

  Status handle_request(Rank from, Request& request, std::uint64_t tick,
                        std::vector<Response>& out);
  Status handle_new(Rank from, Request& request, std::uint64_t tick, std::vector<Response>& out);
  Status handle_ready(Rank from, int host, ReadyOp& ready, std::uint64_t tick,
                      std::vector<Response>& out);
  bool may_aggregate(const ResponseCache::Entry* entry, std::uint32_t occurrence) const;
  void run_ready(const ResponseCache::Entry& entry, ReadyOp& ready, std::vector<Response>& out);
  Status submit(Rank from, const Known& request, Contribution&& contribution, std::uint64_t tick,
                std::vector<Response>& out);
  bool refuse(Rank from, const Known& request, Contribution& contribution,
              std::vector<Response>& out);
  void handle_join(Rank from, PendingOp& join, std::vector<Response>& out);
  void handle_leave(Rank from, std::vector<Response>& out);

  void complete(PendingOp& op, std::vector<Response>& out);
  void change_groups(Response& response);

  // Ends `op` with a Response that takes over its contributions.
  Response& respond(PendingOp& op, std::vector<Response>& out);
  void fail(PendingOp& op, Error error, std::vector<Response>& out);
  // Answers one rank's submission with an error. No other rank's submission is affected.
  void fail_one(Rank from, const std::shared_ptr<const RequestSpec>& spec,
                const std::shared_ptr<const Group>& group, std::uint32_t occurrence,
                Contribution&& contribution, Error error, std::vector<Response>& out);
  void ask_again(Rank from, std::uint32_t token, std::vector<Response>& out) const;

  bool is_of_own_members(const ReadyOp& ready, const Group* group) const;

  const Hosts hosts_;
  const int host_;
  GroupTable groups_;
  NameTable names_;  // outlives cache_ and readiness_, which refer to its entries
  ResponseCache cache_;
  Readiness readiness_;
  Attendance attendance_;
  std::vector<std::size_t> in_flight_;  // submissions by rank without a Response
  std::uint64_t next_index_ = 0;
  Frame scratch_;
};

Status Negotiator::Impl::handle_frame(Rank from, std::span<const std::byte> bytes,
                                      std::uint64_t tick, std::vector<Response>& out) {
  if (static_cast<std::size_t>(from) >= in_flight_.size())
    return violation(from, "is not a rank of this world");
  // The frame is decoded as a whole before anything is decided, so a malformed one changes nothing.
  if (const Status status = decode_frame(bytes, scratch_); !status.ok())
    return violation(from, status.error().text);

  if (scratch_.kind == FrameKind::kReady) {
    for (ReadyOp& ready : scratch_.ready)
      CIRANDA_TRY(handle_ready(from, scratch_.host, ready, tick, out));
    return {};
  }
  if (attendance_.has_left(from)) return violation(from, "it sent a frame after it had left");
  if (scratch_.kind == FrameKind::kLeave) {
    handle_leave(from, out);
    return {};
  }
  for (Request& request : scratch_.requests) CIRANDA_TRY(handle_request(from, request, tick, out));
  return {};
}

Status Negotiator::Impl::handle_request(Rank from, Request& request, std::uint64_t tick,
                                        std::vector<Response>& out) {
  CIRANDA_ASSERT(request.spec.has_value() == (request.cache_id == kNoCacheId));  // by decode_frame
  const ResponseCache::Entry* entry =
      request.spec.has_value() ? cache_.use(*request.spec) : cache_.use(request.cache_id);
  if (entry != nullptr) {
    const Known known{entry->spec, *entry->name, request.occurrence};
    return submit(from, known, std::move(request.contribution), tick, out);
  }
  if (request.spec.has_value()) return handle_new(from, request, tick, out);
  if (!cache_.handed_out(request.cache_id)) return unknown_number_error(from, request.cache_id);
  ask_again(from, request.contribution.token, out);
  return {};
}

Status Negotiator::Impl::handle_new(Rank from, Request& request, std::uint64_t tick,
                                    std::vector<Response>& out) {
  const auto spec = std::make_shared<const RequestSpec>(*std::move(request.spec));
  // A join has no occurrence, whatever its sender has counted: there is one join at a time.
  const std::uint32_t occurrence = spec->kind == OpKind::kJoin ? 0 : request.occurrence;
  const std::shared_ptr<const Group> group = groups_.find_or_pair(spec->group);
  if (group == nullptr) {
    fail_one(from, spec, nullptr, occurrence, std::move(request.contribution),
             {.code = ErrorCode::kInvalidArgument,
              .text = no_group_text(*spec, occurrence),
              .rank = from,
              .tensor = spec->name},
             out);
    return {};
  }
  NameEntry& name = names_.acquire(spec->name, spec->kind, group);
  const Known known{spec, name, occurrence};
  Status status = submit(from, known, std::move(request.contribution), tick, out);
  names_.release(name);
  return status;
}

void Negotiator::Impl::ask_again(Rank from, std::uint32_t token, std::vector<Response>& out) const {
  Response& response = out.emplace_back();
  response.verdict = Response::Verdict::kResubmit;
  response.resubmit_rank = from;
  response.resubmit_token = token;
}

// -------------------------------------------------------------------------------------------
// Aggregated Requests

bool Negotiator::Impl::may_aggregate(const ResponseCache::Entry* entry,
                                     std::uint32_t occurrence) const {
  return entry != nullptr && !takes_rows(entry->name->kind) && attendance_.is_full() &&
         readiness_.find(*entry->name, occurrence) == nullptr;
}

// Handles the operation as if each member had sent its own Request, in the order of hosts and local
// ranks. In the usual case nothing is pending under its name, so it runs without a look at each
// member.
Status Negotiator::Impl::handle_ready(Rank from, int host, ReadyOp& ready, std::uint64_t tick,
                                      std::vector<Response>& out) {
  if (host_ >= static_cast<int>(hosts_.size()) || host >= static_cast<int>(hosts_.size()))
    return violation(from, "it names a host that this job does not have");
  if (!cache_.handed_out(ready.op.cache_id)) return unknown_number_error(from, ready.op.cache_id);
  const bool of_own = host == kAllHosts || host == host_;
  const ResponseCache::Entry* entry = cache_.use(ready.op.cache_id);
  const Group* const group = entry != nullptr ? entry->name->group.get() : nullptr;
  if (of_own ? !is_of_own_members(ready, group) : !ready.contributions.empty())
    return violation(from, "a ready operation lacks the contributions of this host's ranks");
  if (host == kAllHosts && may_aggregate(entry, ready.op.occurrence)) {
    run_ready(*entry, ready, out);
    return {};
  }
  if (group == nullptr) {
    const std::vector<Rank>& own = hosts_[static_cast<std::size_t>(host_)];
    for (std::size_t i = 0; i < ready.contributions.size(); ++i) {
      const std::size_t local =
          ready.local_ranks.empty() ? i : static_cast<std::size_t>(ready.local_ranks[i]);
      ask_again(own[local], ready.contributions[i].token, out);
    }
    return {};
  }
  const std::shared_ptr<const Group> kept = entry->name->group;  // lives while Requests are handled
  for (std::size_t h = 0; h < hosts_.size(); ++h) {
    if (host != kAllHosts && host != static_cast<int>(h)) continue;
    for (std::size_t i = 0; i < kept->hosts[h].size(); ++i) {
      const Rank rank = kept->hosts[h][i];
      if (attendance_.has_left(rank))
        return violation(rank, "its operation is reported as ready after it had left");
      Request request{.cache_id = ready.op.cache_id, .occurrence = ready.op.occurrence};
      if (static_cast<int>(h) == host_) request.contribution = std::move(ready.contributions[i]);
      CIRANDA_TRY(handle_request(rank, request, tick, out));
    }
  }
  return {};
}

// Returns true if `ready` has a contribution of each member on this host and no other. A null
// `group` means that the number was evicted: then any ranks of this host may be the members.
bool Negotiator::Impl::is_of_own_members(const ReadyOp& ready, const Group* group) const {
  const auto host = static_cast<std::size_t>(host_);
  const std::vector<Rank>& own = hosts_[host];
  const std::size_t count = ready.contributions.size();
  if (group != nullptr && count != group->hosts[host].size()) return false;
  if (ready.local_ranks.empty()) return count == 0 || count == own.size();
  for (std::size_t i = 0; i < count; ++i) {
    const auto local = static_cast<std::size_t>(ready.local_ranks[i]);
    if (local >= own.size()) return false;
    if (group != nullptr && own[local] != group->hosts[host][i]) return false;
  }
  return true;
}

void Negotiator::Impl::run_ready(const ResponseCache::Entry& entry, ReadyOp& ready,
                                 std::vector<Response>& out) {
  Response& response = out.emplace_back();
  response.index = next_index_++;
  response.spec = entry.spec;
  response.group = entry.name->group;
  response.occurrence = ready.op.occurrence;
  response.cache_id = entry.id;
  const std::vector<Rank>& own = response.group->hosts[static_cast<std::size_t>(host_)];
  response.contributions.reserve(own.size());
  for (std::size_t i = 0; i < own.size(); ++i)
    response.contributions.push_back({own[i], std::move(ready.contributions[i])});
}

// -------------------------------------------------------------------------------------------
// From Requests to Responses

Status Negotiator::Impl::submit(Rank from, const Known& request, Contribution&& contribution,
                                std::uint64_t tick, std::vector<Response>& out) {
  const int index = request.name.group->index_of(from);
  const bool is_usual = index >= 0 && attendance_.is_full();
  if (!is_usual && refuse(from, request, contribution, out)) return {};
  const auto member = static_cast<std::size_t>(index);
  PendingOp* op = readiness_.find(request.name, request.occurrence);
  if (op == nullptr) {
    op = &readiness_.open(request.name, request.occurrence, request.spec, tick);
  } else if (op->contributions[member].has_value()) {
    return violation(from, "it submitted " + op_label(*op->spec, op->occurrence) +
                               " twice before every rank had submitted it once");
  }
  std::size_t& in_flight = in_flight_[static_cast<std::size_t>(from)];
  if (in_flight == kInFlightMax)
    return Error{.code = ErrorCode::kLimit,
                 .text = "rank " + std::to_string(from) + " has more than " +
                         std::to_string(kInFlightMax) + " operations in flight",
                 .rank = from};
  ++in_flight;
  op->contributions[member] = std::move(contribution);
  --op->missing;
  if (request.spec != op->spec && *request.spec != *op->spec)
    op->disagreements.push_back({from, request.spec});
  if (request.name.kind == OpKind::kJoin)
    handle_join(from, *op, out);
  else if (attendance_.completes(*op))
    complete(*op, out);
  return {};
}

// Returns true if the Request was answered at once with an error, whatever other ranks submit.
bool Negotiator::Impl::refuse(Rank from, const Known& request, Contribution& contribution,
                              std::vector<Response>& out) {
  const std::shared_ptr<const Group>& group = request.name.group;
  auto error = attendance_.refusal_of(from, *request.spec, request.occurrence, *group);
  if (!error) return false;
  fail_one(from, request.spec, group, request.occurrence, std::move(contribution),
           *std::move(error), out);
  return true;
}

// Completes the operations that waited for this rank alone. When the last rank joins, the join
// itself completes and every rank takes part again.
void Negotiator::Impl::handle_join(Rank from, PendingOp& join, std::vector<Response>& out) {
  attendance_.join(from);
  for (PendingOp* op = readiness_.oldest(); op != nullptr;) {
    PendingOp* const newer = op->newer;
    if (op != &join && attendance_.completes(*op)) complete(*op, out);
    op = newer;
  }
  if (!attendance_.completes(join)) return;
  CIRANDA_ASSERT(readiness_.oldest() == &join && join.newer == nullptr);  // I20
  complete(join, out);
  out.back().last_joined = from;
  attendance_.start_again();
}

// Fails every pending operation of the rank's groups. Those that the rank had submitted fail too,
// because it takes no part in moving the data any more.
void Negotiator::Impl::handle_leave(Rank from, std::vector<Response>& out) {
  attendance_.leave(from);
  for (PendingOp* op = readiness_.oldest(); op != nullptr;) {
    PendingOp* const newer = op->newer;
    if (op->group().contains(from))
      fail(*op, attendance_.left_error(*op->spec, op->occurrence, op->group()), out);
    op = newer;
  }
}

void Negotiator::Impl::complete(PendingOp& op, std::vector<Response>& out) {
  std::vector<Rank> joined = attendance_.joined_without(op);
  CIRANDA_ASSERT(op.missing == static_cast<int>(joined.size()));  // I2
  if (auto fault = fault_of(op, joined, groups_, readiness_)) {
    fail(op, *std::move(fault), out);
    return;
  }
  const CacheId id = is_membership(op.spec->kind) ? kNoCacheId : cache_.insert(op.spec, *op.name);
  Response& response = respond(op, out);
  response.cache_id = id;
  response.joined = std::move(joined);
  change_groups(response);
}

void Negotiator::Impl::change_groups(Response& response) {
  const RequestSpec& spec = *response.spec;
  if (spec.kind == OpKind::kAddGroup) response.changed = groups_.add(spec.members);
  if (spec.kind != OpKind::kRemoveGroup) return;
  CIRANDA_ASSERT(readiness_.oldest_of(spec.removes) == nullptr);  // I19
  response.changed = groups_.find(spec.removes);
  groups_.remove(spec.removes);
  cache_.evict_group(spec.removes);
}

Response& Negotiator::Impl::respond(PendingOp& op, std::vector<Response>& out) {
  Response& response = out.emplace_back();
  const std::vector<Rank>& ranks = op.group().ranks;
  response.contributions.reserve(ranks.size() - static_cast<std::size_t>(op.missing));
  for (std::size_t index = 0; index < ranks.size(); ++index) {
    if (!op.contributions[index].has_value()) continue;
    std::size_t& in_flight = in_flight_[static_cast<std::size_t>(ranks[index])];
    CIRANDA_ASSERT(in_flight > 0);
    --in_flight;
    response.contributions.push_back({ranks[index], *std::move(op.contributions[index])});
  }
  response.index = next_index_++;
  response.spec = std::move(op.spec);
  response.group = op.name->group;
  response.occurrence = op.occurrence;
  readiness_.close(op);
  return response;
}

void Negotiator::Impl::fail(PendingOp& op, Error error, std::vector<Response>& out) {
  Response& response = respond(op, out);
  response.verdict = Response::Verdict::kError;
  response.error = std::move(error);
}

void Negotiator::Impl::fail_one(Rank from, const std::shared_ptr<const RequestSpec>& spec,
                                const std::shared_ptr<const Group>& group, std::uint32_t occurrence,
                                Contribution&& contribution, Error error,
                                std::vector<Response>& out) {
  Response& response = out.emplace_back();
  response.verdict = Response::Verdict::kError;
  response.index = next_index_++;
  response.spec = spec;
  response.group = group;
  response.occurrence = occurrence;
  response.contributions.push_back({from, std::move(contribution)});
  response.error = std::move(error);
}

std::vector<StalledOp> Negotiator::Impl::waiting() const {
  std::vector<StalledOp> stalled;
  for (const PendingOp* op = readiness_.oldest(); op != nullptr; op = op->newer) {
    stalled.push_back({op->spec, op->occurrence, attendance_.missing(*op), op->since_tick});
  }
  return stalled;
}

Negotiator::Negotiator(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
Negotiator::~Negotiator() = default;

Status Negotiator::handle_frame(Rank from, std::span<const std::byte> frame, std::uint64_t tick,
                                std::vector<Response>& out) {
  return impl_->handle_frame(from, frame, tick, out);
}
CacheId Negotiator::known(const RequestSpec& spec) const {
  return impl_->known(spec);
}
const Group* Negotiator::may_aggregate(const KnownOp& op) const {
  return impl_->may_aggregate(op);
}
std::vector<StalledOp> Negotiator::waiting() const {
  return impl_->waiting();
}
const GroupTable& Negotiator::groups() const {
  return impl_->groups();
}
const std::vector<Rank>& Negotiator::departed() const {
  return impl_->attendance().departed();
}
const std::vector<Rank>& Negotiator::joined() const {
  return impl_->attendance().joined();
}
std::size_t Negotiator::in_flight(Rank rank) const {
  return impl_->in_flight(rank);
}

}  // namespace ciranda
