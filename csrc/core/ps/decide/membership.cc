#include "core/ps/decide/membership.h"

#include <algorithm>

#include "core/ps/decide/refusal.h"

namespace ciranda::ps {

Membership::Membership(ServerProtocolOptions options)
    : options_(std::move(options)),
      job_id_(options_.job_id),
      workers_(static_cast<std::size_t>(options_.workers)) {}

const Membership::Member& Membership::at(Worker member) const {
  if (is_coordinator(member)) return coordinator_;
  CIRANDA_ASSERT(static_cast<std::size_t>(member) < workers_.size());
  return workers_[static_cast<std::size_t>(member)];
}

std::string Membership::words_of(Worker member) const {
  return is_coordinator(member) ? "the coordinator" : "worker " + std::to_string(member);
}

// -------------------------------------------------------------------------------------------
// Connections

void Membership::open(Caller caller) {
  CIRANDA_ASSERT(!connections_.contains(caller));
  connections_[caller] = -1;
}

Worker Membership::close(Caller caller, bool left) {
  const Worker member = member_of(caller);
  connections_.erase(caller);
  if (member < 0) return member;
  Member& gone = at(member);
  CIRANDA_ASSERT(gone.caller == caller);  // I25: the connection of its latest life
  gone.caller = -1;
  gone.left = left;
  gone.gone = true;
  return member;
}

// -------------------------------------------------------------------------------------------
// Entering

// Checks that the sender and this server were configured alike.
Status Membership::check_settings(const Enter& message) const {
  const auto mismatch = [](const std::string& why) { return refused(ErrorCode::kMismatch, why); };
  const std::string self = words_of(message.worker);
  const std::string server = "server " + std::to_string(options_.server);
  if (message.version != kProtocolVersion) {
    return mismatch(self + " speaks version " + std::to_string(message.version) +
                    " of the servers' protocol, " + server + " version " +
                    std::to_string(kProtocolVersion) + "; install the same ciranda for both");
  }
  if (message.job_id != options_.job_id) {
    return mismatch(self + " belongs to job '" + message.job_id + "', " + server + " to job '" +
                    options_.job_id + "'");
  }
  if (message.server != options_.server || message.servers != options_.servers ||
      message.workers != options_.workers) {
    return mismatch(self + " was started for " + std::to_string(message.workers) + " workers and " +
                    std::to_string(message.servers) + " servers, " + server + " for " +
                    std::to_string(options_.workers) + " and " + std::to_string(options_.servers));
  }
  if (is_coordinator(message.worker) && !options_.has_coordinator) {
    return mismatch("there is no worker " + std::to_string(message.worker) + ", only 0 to " +
                    std::to_string(options_.workers - 1) +
                    "; servers of a job with a coordinator are started with --coordinator");
  }
  if (message.worker > options_.workers) {
    return mismatch("there is no " + self + ", only 0 to " + std::to_string(options_.workers - 1));
  }
  if (message.life == 0) {
    return refused(ErrorCode::kMalformed, self + " has life 0; lives count from 1");
  }
  return {};
}

// Checks that the sender may belong to the job of the members that are connected and not silent.
Status Membership::check_origin(const Enter& message, const Leases& leases) const {
  const auto is_here = [&](const Member& member) {
    return member.caller >= 0 && !leases.is_silent(member.caller);
  };
  const auto compare = [&](Worker number, const Member& member) -> Status {
    const std::string why = is_here(member) ? difference(member.origin, message.origin) : "";
    if (why.empty()) return {};
    return refused(ErrorCode::kInvalidArgument,
                   words_of(message.worker) + " seems to belong to another job than " +
                       words_of(number) + ", which is connected: " + why +
                       "; give each job its own servers, or, if both belong to "
                       "one job, set "
                       "CIRANDA_JOB_ID to the same name for all its workers");
  };
  CIRANDA_TRY(compare(options_.workers, coordinator_));
  for (std::size_t worker = 0; worker < workers_.size(); ++worker) {
    CIRANDA_TRY(compare(static_cast<Worker>(worker), workers_[worker]));
  }
  return {};
}

Result<Membership::Entry> Membership::check(Caller caller, const Enter& message,
                                            const Leases& leases) const {
  const std::string self = words_of(message.worker);
  if (member_of(caller) >= 0) return refused(ErrorCode::kMalformed, self + " enters twice");
  CIRANDA_TRY(check_settings(message));
  CIRANDA_TRY(check_origin(message, leases));
  const Member& known = at(message.worker);
  // The same process enters again, after its connection or this server was lost.
  const bool returns = message.life == known.life && message.process == known.process;
  if (message.life <= known.life && !returns) {
    return refused(ErrorCode::kInvalidArgument,
                   self + (message.life == known.life
                               ? " is connected already; give each process its own number"
                               : " has been restarted since this process started"));
  }
  return Entry{.returns = returns, .replaces = known.caller};
}

void Membership::enter(Caller caller, const Enter& message) {
  Member& member = at(message.worker);
  CIRANDA_ASSERT(member.caller < 0 && member.life <= message.life);  // I25
  member.life = message.life;
  member.process = message.process;
  member.origin = message.origin;
  member.caller = caller;
  member.left = false;
  connections_.at(caller) = message.worker;
}

// -------------------------------------------------------------------------------------------
// Who is here and who is gone

std::optional<Worker> Membership::giver() const {
  const auto giver = std::ranges::find(workers_, false, &Member::left);
  if (giver == workers_.end()) return std::nullopt;
  return static_cast<Worker>(giver - workers_.begin());
}

bool Membership::have_workers_left() const {
  return std::ranges::all_of(workers_, &Member::left);
}

bool Membership::has_members() const {
  return std::ranges::any_of(connections_, [](const auto& each) { return each.second >= 0; });
}

std::vector<Worker> Membership::gone_workers() const {
  std::vector<Worker> gone;
  for (std::size_t worker = 0; worker < workers_.size(); ++worker) {
    if (workers_[worker].gone) gone.push_back(static_cast<Worker>(worker));
  }
  return gone;
}

std::vector<Worker> Membership::absent_workers() const {
  std::vector<Worker> absent;
  for (std::size_t worker = 0; worker < workers_.size(); ++worker) {
    if (workers_[worker].caller < 0) absent.push_back(static_cast<Worker>(worker));
  }
  return absent;
}

// -------------------------------------------------------------------------------------------
// Saved state

Membership::Saved Membership::saved(Worker member) const {
  const Member& now = at(member);
  return {.life = now.life, .process = now.process, .left = now.left};
}

void Membership::restore(Worker member, const Saved& was) {
  Member& now = at(member);
  CIRANDA_ASSERT(now.caller < 0);
  now.life = was.life;
  now.process = was.process;
  now.left = was.left;
}

void Membership::begin_job(std::string job_id) {
  job_id_ = std::move(job_id);
  for (Worker worker = 0; worker < options_.workers; ++worker) restore(worker, {});
  restore(options_.workers, {});
}

Status Membership::repeat(const Change& change) {
  const Worker worker = change.worker;
  if (worker > options_.workers || (is_coordinator(worker) && !options_.has_coordinator)) {
    return refused(ErrorCode::kMalformed,
                   "a stored change names a worker that this job does not have");
  }
  Member& member = at(worker);
  member.left = change.kind == Change::Kind::kLeft;
  if (member.left) return {};
  CIRANDA_ASSERT(change.kind == Change::Kind::kEntered);
  member.life = change.life;
  member.process = change.process;
  return {};
}

}  // namespace ciranda::ps
