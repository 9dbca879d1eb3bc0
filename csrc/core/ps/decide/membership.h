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
#include "core/ps/decide/messages.h"
#include "core/ps/decide/model.h"
#include "core/ps/decide/origin.h"
#include "core/ps/decide/server_protocol_options.h"

namespace ciranda::ps {

using Caller = int;  // the number of an open connection

// Decides which processes may enter, and knows which are connected, silent, gone or awaited. A
// member of the job is a worker or the coordinator.
//
// Not thread-safe. Never blocks.
class Membership {
 public:
  explicit Membership(ServerProtocolOptions options);

  bool is_coordinator(Worker member) const { return member == options_.workers; }
  // Returns "worker 3" or "the coordinator".
  std::string words_of(Worker member) const;

  // --- Connections ---

  void open(Caller caller, std::uint64_t now_ns);
  bool is_open(Caller caller) const { return connections_.contains(caller); }
  // Returns true if no connection is open.
  bool is_empty() const { return connections_.empty(); }
  // A message came. Returns true if the caller was silent until now.
  bool hear(Caller caller, std::uint64_t now_ns);
  // Returns the member that has entered over the connection; -1: none has.
  Worker member_of(Caller caller) const { return connections_.at(caller).member; }
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
  // connected members, and is not an older process.
  Result<Entry> check(Caller caller, const Enter& message) const;
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
  // Returns the workers that a connection has ended of, and those whose lease is over.
  std::vector<Worker> gone_workers() const;
  std::vector<Worker> silent_workers() const;

  // Returns when the next lease ends (monotonic_ns; kNever: none does).
  std::uint64_t next_lease_ns() const;
  // Ends the leases that are over. Returns their members.
  std::vector<Worker> end_leases(std::uint64_t now_ns);
  // Ends the wait for members after restore(). Returns the workers that have not come; nothing
  // before its end.
  std::vector<Worker> end_wait(std::uint64_t now_ns);

  // --- Saved state ---

  struct Saved {
    Life life = 0;
    std::uint64_t process = 0;
    bool left = false;
  };
  // Returns the job of the state: maybe another job than this one, until begin_job().
  const std::string& job_id() const { return job_id_; }
  Saved saved(Worker member) const;
  // Restores the members of a job in a new object. Members that have not left are waited for during
  // one lease.
  void restore(std::string job_id, std::uint64_t now_ns);
  void restore(Worker member, const Saved& was);
  // The members become those of a job. All are expected again, also those that had left.
  void begin_job(std::string job_id);
  // Replays kEntered or kLeft. kMalformed: this job has no such member.
  Status repeat(const Change& change);

 private:
  struct Connection {
    Worker member = -1;  // -1: none has entered
    std::uint64_t heard_ns = 0;
    bool silent = false;  // its lease is over
  };
  struct Member {
    Life life = 0;
    std::uint64_t process = 0;  // of that life
    Origin origin = {};         // of that life
    Caller caller = -1;         // -1: it is not connected
    bool left = false;          // in order
    bool gone = false;          // a connection of it has ended
  };
  Status check_settings(const Enter& message) const;
  Status check_origin(const Enter& message) const;
  Member& at(Worker member) { return const_cast<Member&>(std::as_const(*this).at(member)); }
  const Member& at(Worker member) const;

  const ServerProtocolOptions options_;
  std::string job_id_;
  std::map<Caller, Connection> connections_;
  std::vector<Member> workers_;
  Member coordinator_;
  std::uint64_t expected_ns_ = UINT64_MAX;  // end of the wait for members after restore()
};

}  // namespace ciranda::ps
