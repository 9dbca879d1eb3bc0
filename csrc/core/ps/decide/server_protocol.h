#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/assert.h"
#include "core/base/result.h"
#include "core/ps/decide/averages.h"
#include "core/ps/decide/checkpoint_announcer.h"
#include "core/ps/decide/checkpoint_barrier.h"
#include "core/ps/decide/journal.h"
#include "core/ps/decide/messages.h"
#include "core/ps/decide/saved_protocol.h"
#include "core/ps/decide/server_protocol_options.h"
#include "core/ps/decide/shard.h"
#include "core/ps/decide/shard_requests.h"
#include "core/ps/decide/task_protocol.h"
#include "core/ps/decide/vector_works.h"

namespace ciranda::ps {

// Decides what a server answers to its workers: which workers may enter, which one gives the first
// parameters, when a lease ends. It does no I/O: the caller passes in connections, messages and the
// time, so that a simulation can drive it. An invalid message closes its connection with an error;
// other connections are unaffected.
//
// Not thread-safe. Never blocks.
class ServerProtocol {
 public:
  explicit ServerProtocol(ServerProtocolOptions options);

  using Caller = int;  // the number of an open connection
  using Attached = ps::Attached;
  struct Answer {
    Caller to = -1;
    Message message;
    bool hangs_up = false;  // end the connection after sending; close() has been done
  };
  using Answers = std::vector<Answer>;

  // Adds a new connection.
  void open(Caller caller, std::uint64_t now_ns);
  // The connection was closed by the peer, or is lost.
  void close(Caller caller, std::uint64_t now_ns, Answers& answers);
  // Handles a message. Appends all answers that it leads to, also those to other callers.
  void take(Caller caller, Message message, const Attached& attached, std::uint64_t now_ns,
            Answers& answers);
  // Answers Refused with `why` and hangs up. For a message that does not decode, and for a caller
  // that must not enter.
  void refuse(Caller caller, const Error& why, std::uint64_t now_ns, Answers& answers);

  // Returns when the next lease ends (monotonic_ns; kNever: none does).
  std::uint64_t next_lease_ns() const;
  // Ends the leases that are over. Appends the answers that waited for their workers.
  void end_leases(std::uint64_t now_ns, Answers& answers);

  // Writes every change of the state to `journal` from here on, before the change is answered.
  void keep_journal(Journal* journal);
  // Makes checkpoints from here on: see CheckpointBarrier::keep().
  void keep_checkpoints(CheckpointKeeper* keeper, Checkpoint latest);
  // Starts with the parameters and state of `shard`. The first worker that declares sets the mode.
  // Call it before any worker has entered.
  void adopt(std::unique_ptr<Shard> shard);
  // Begins and closes the last checkpoint, if the shard has parameters. Call it when all workers
  // have left.
  void end_checkpoints();
  // Appends the state, except the contents of arrays(). The shard must have parameters.
  void save(std::vector<std::byte>& out) const;
  Shard::Arrays arrays() { return shard_->arrays(); }
  // Restores what save() has written, into a new protocol. The caller then fills arrays(). Workers
  // that have not left are waited for during one lease. kMismatch: the state is of another job,
  // server or version of ciranda. kMalformed: it does not decode. kSystem: not enough memory.
  Status restore(std::span<const std::byte> saved, std::uint64_t now_ns);
  // Replays a change from the journal, see Shard::repeat().
  Status repeat(const Change& change, std::span<const std::byte> data);
  // Makes the restored state of another job this job's. Workers may then enter in their first
  // lives. Returns false if the state was this job's already.
  bool resume();
  // Returns the job of the state: until resume() maybe another job than this one.
  const std::string& job_id() const { return job_id_; }

  bool all_have_left() const;
  // Returns the worker that must give the first parameters, if other workers wait for it.
  std::optional<Worker> awaited() const;
  // Returns true if a process that has entered is connected.
  bool has_callers() const;
  const Shard* shard() const { return shard_.get(); }  // null before the first declaration
  bool has_parameters() const { return shard_ && shard_->given() && !is_adopted_; }
  // Returns the number of answered pushes that restarts have lost.
  std::uint64_t lost() const { return lost_; }
  Stats stats() const;

 private:
  struct Connection {
    Worker worker = -1;  // -1: it has not entered
    std::uint64_t heard_ns = 0;
    std::byte* memory = nullptr;  // null: it has not declared
    bool waits = false;           // it has declared and waits for the first parameters
    bool returns = false;         // it has had parameters before
    bool silent = false;          // its lease is over
  };
  struct Member {
    Life life = 0;
    std::uint64_t process = 0;  // of that life
    Origin origin = {};         // of that life
    Caller caller = -1;         // -1: it is not connected
    bool left = false;          // in order
    bool gone = false;          // a connection of it has ended
    std::uint64_t pushed_ns = 0;
    std::uint64_t held_ns = 0;  // time that its answers waited for other workers
  };

  Status handle(Caller caller, Message message, const Attached& attached, Answers& answers);
  // Handles a message of a worker that has declared.
  Status take_declared(Caller caller, Message message, const Attached& attached, Answers& answers);
  Status check(const Enter& message) const;
  Status check_origin(const Enter& message) const;
  Status enter(Caller caller, const Enter& message, Answers& answers);
  Status declare(Caller caller, const Declare& message, const Attached& attached, Answers& answers);
  Status push(Caller caller, Push message, Answers& answers);
  Status take_of_tasks(Caller caller, const Message& message, Answers& answers);
  void give(TaskProtocol::Answers tasks, Answers& answers);
  TaskProtocol::Left who_has_left() const;
  void depart(Caller caller, bool left, Answers& answers);
  Result<std::unique_ptr<Shard>> first_shard(Model model) const;
  void begin_with(std::unique_ptr<Shard> shard);
  Status welcome_back(Worker worker, const Declare& message);
  void leave_shard(Worker worker);
  void begin_job(std::string job_id);
  static Member restored(const SavedProtocol::Member& was);
  static SavedProtocol::Member saved(const Member& member);
  void mark(Worker worker, std::uint64_t checkpoint);
  void link_journal();
  Worker giver() const;
  void give_if_there(Answers& answers);
  void hang_up(Caller caller, const Error& why, Answers& answers);
  template <typename T>
  static Status reply(Caller caller, Result<T> result, Answers& answers) {
    if (!result) return result.error();
    answers.push_back({caller, std::move(result).value()});
    return {};
  }
  void tell(std::vector<Ack> acks, Answers& answers);
  void hear(Worker worker);
  Connection& of(Caller caller) { return connections_.at(caller); }
  bool is_coordinator(Worker worker) const { return worker == options_.workers; }
  std::string words_of(Worker worker) const;
  Member& member(Worker worker) {
    if (is_coordinator(worker)) return coordinator_;
    CIRANDA_ASSERT(static_cast<std::size_t>(worker) < members_.size());
    return members_[static_cast<std::size_t>(worker)];
  }

  const ServerProtocolOptions options_;
  std::string job_id_;
  std::map<Caller, Connection> connections_;
  std::vector<Member> members_;
  Member coordinator_;
  std::uint64_t now_ns_ = 0;  // the latest time that the caller has passed in
  std::uint64_t pulls_ = 0;
  std::uint64_t lost_ = 0;                  // answered pushes that restarts have lost
  std::uint64_t expected_ns_ = UINT64_MAX;  // end of the wait for workers after restore()
  Journal* journal_ = nullptr;
  CheckpointBarrier checkpoint_barrier_;
  CheckpointAnnouncer announcer_;
  bool is_adopted_ = false;  // adopt() was called, and no worker has declared yet
  std::unique_ptr<Shard> shard_;
  std::optional<TaskProtocol> tasks_;  // only on server 0 of a job with a coordinator
  VectorWorks works_;
  Averages averages_;
};

}  // namespace ciranda::ps
