#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/assert.h"
#include "core/base/result.h"
#include "core/ps/decide/journal.h"
#include "core/ps/decide/leases.h"
#include "core/ps/decide/messages.h"
#include "core/ps/decide/model.h"
#include "core/ps/decide/origin.h"
#include "core/ps/decide/server_protocol_options.h"

namespace ciranda::ps {

// Decides which processes may enter, and knows which are connected, gone or awaited. A member of
// the job is a worker or the coordinator.
//
// Not thread-safe. Never blocks.
class Membership {
 public:
  explicit Membership(ServerProtocolOptions options);

  bool is_coordinator(Worker member) const { return member == options_.workers; }
  // Returns "worker 3" or "the coordinator".
  std::string words_of(Worker member) const;

  // --- Connections ---

  void open(Caller caller);
  bool is_open(Caller caller) const { return connections_.contains(caller); }
  // Returns true if no connection is open.
  bool is_empty() const { return connections_.empty(); }
  // Returns the member that has entered over the connection; -1: none has.
  Worker member_of(Caller caller) const { return connections_.at(caller); }
  // Returns the member's connection; -1: it is not connected.
  Caller caller_of(Worker member) const { return at(member).caller; }
  // Ends a connection. `left`: its member has left in order. Returns the member; -1: none has
  // entered.
  Worker close(Caller caller, bool left);

  // --- Entering ---

  struct Entry {
    bool returns = false;  // the same process enters again
    Caller replaces = -1;  // the member's open connection, which has to end first; -1: none
  };
  // Returns an error unless the sender was configured like this server, belongs to the job of the
  // connected members, and is not an older process. Silent members do not count.
  Result<Entry> check(Caller caller, const Enter& message, const Leases& leases) const;
  // check() has accepted the message, and the connection that it replaces is closed.
  void enter(Caller caller, const Enter& message);

  // --- Who is here and who is gone ---

  // Returns the worker that gives the first parameters: the lowest one that has not left.
  std::optional<Worker> giver() const;
  bool has_coordinator_left() const { return coordinator_.left; }
  bool have_workers_left() const;
  // Returns true if the workers and, if the job has one, the coordinator have left.
  bool have_all_left() const {
    return have_workers_left() && (coordinator_.left || !options_.has_coordinator);
  }
  // Returns true if any member is connected.
  bool has_members() const;
  // Returns the workers of which a connection has ended.
  std::vector<Worker> gone_workers() const;
  // Returns the workers that are not connected.
  std::vector<Worker> absent_workers() const;

  // --- Saved state ---

  struct Saved {
    Life life = 0;
    std::uint64_t process = 0;
    bool left = false;
  };
  // Returns the job of the state: maybe another job than this one, until begin_job().
  const std::string& job_id() const { return job_id_; }
  Saved saved(Worker member) const;
  // Restores the members of a job in a new object.
  void restore(std::string job_id) { job_id_ = std::move(job_id); }
  void restore(Worker member, const Saved& was);
  // Begins another job with the restored state. All members are expected again, also those that had
  // left.
  void begin_job(std::string job_id);
  // Replays kEntered or kLeft. kMalformed: this job has no such member.
  Status repeat(const Change& change);

 private:
  struct Member {
    Life life = 0;
    std::uint64_t process = 0;  // of that life
    Origin origin = {};         // of that life
    Caller caller = -1;         // -1: it is not connected
    bool left = false;          // in order
    bool gone = false;          // a connection of it has ended
  };
  Status check_settings(const Enter& message) const;
  Status check_origin(const Enter& message, const Leases& leases) const;
  Member& at(Worker member) { return const_cast<Member&>(std::as_const(*this).at(member)); }
  const Member& at(Worker member) const;

  const ServerProtocolOptions options_;
  std::string job_id_;
  std::map<Caller, Worker> connections_;  // -1: no member has entered
  std::vector<Member> workers_;
  Member coordinator_;
};

}  // namespace ciranda::ps
