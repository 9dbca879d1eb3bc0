// Decides which workers may enter.
#include <utility>

#include "core/base/assert.h"
#include "core/ps/decide/refusal.h"
#include "core/ps/decide/server_protocol.h"

namespace ciranda::ps {

// Checks that the sender and this server were configured alike.
Status ServerProtocol::check(const Enter& message) const {
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

// Checks that the sender may belong to the job of the workers that are connected and not silent.
Status ServerProtocol::check_origin(const Enter& message) const {
  const auto is_here = [&](const Member& member) {
    return member.caller >= 0 && !connections_.at(member.caller).silent;
  };
  const auto compare = [&](Worker worker, const Member& member) -> Status {
    const std::string why = is_here(member) ? difference(member.origin, message.origin) : "";
    if (why.empty()) return {};
    return refused(ErrorCode::kInvalidArgument,
                   words_of(message.worker) + " seems to belong to another job than " +
                       words_of(worker) + ", which is connected: " + why +
                       "; give each job its own servers, or, if both belong to one job, set "
                       "CIRANDA_JOB_ID to the same name for all its workers");
  };
  CIRANDA_TRY(compare(options_.workers, coordinator_));
  for (std::size_t worker = 0; worker < members_.size(); ++worker) {
    CIRANDA_TRY(compare(static_cast<Worker>(worker), members_[worker]));
  }
  return {};
}

Status ServerProtocol::enter(Caller caller, const Enter& message, Answers& answers) {
  const std::string self = words_of(message.worker);
  if (of(caller).worker >= 0) return refused(ErrorCode::kMalformed, self + " enters twice");
  CIRANDA_TRY(check(message));
  CIRANDA_TRY(check_origin(message));
  const Member& known = member(message.worker);
  // The same process enters again, after its connection or this server was lost.
  const bool returns = message.life == known.life && message.process == known.process;
  if (message.life <= known.life && !returns) {
    return refused(ErrorCode::kInvalidArgument,
                   self + (message.life == known.life
                               ? " is connected already; give each process its own number"
                               : " has been restarted since this process started"));
  }
  if (const Caller before = known.caller; before >= 0) {
    hang_up(before,
            refused(ErrorCode::kInvalidArgument,
                    self + (returns ? " has reconnected" : " has been restarted")),
            answers);
  }
  if (journal_ != nullptr && !returns) {
    journal_->write({.kind = Change::Kind::kEntered,
                     .worker = message.worker,
                     .life = message.life,
                     .process = message.process},
                    {});
  }
  Member& self_now = member(message.worker);
  CIRANDA_ASSERT(self_now.caller < 0 && self_now.life <= message.life);  // I25
  self_now.life = message.life;
  self_now.process = message.process;
  self_now.origin = message.origin;
  self_now.caller = caller;
  self_now.left = false;
  hear(message.worker);  // the wait after a restart may have ended without it
  of(caller).worker = message.worker;
  Welcome welcome{.scheduled = tasks_ ? tasks_->scheduled() : 0,
                  .keeps_state = options_.keeps_state};
  if (shard_ && !is_coordinator(message.worker)) {
    welcome.decided = shard_->decided(message.worker);
    welcome.decided_rows = shard_->decided_rows(message.worker);
  }
  answers.push_back({caller, welcome});
  return {};
}

}  // namespace ciranda::ps
