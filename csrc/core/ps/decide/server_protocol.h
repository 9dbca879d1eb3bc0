#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/assert.h"
#include "core/base/result.h"
#include "core/ps/decide/averages.h"
#include "core/ps/decide/checkpoint_announcer.h"
#include "core/ps/decide/checkpoint_barrier.h"
#include "core/ps/decide/declarations.h"
#include "core/ps/decide/journal.h"
#include "core/ps/decide/leases.h"
#include "core/ps/decide/membership.h"
#include "core/ps/decide/messages.h"
#include "core/ps/decide/server_protocol_options.h"
#include "core/ps/decide/shard.h"
#include "core/ps/decide/shard_requests.h"
#include "core/ps/decide/task_protocol.h"
#include "core/ps/decide/vector_works.h"

namespace ciranda::ps {

// Decides what a server answers to its workers. It passes each message to the part that decides
// about it, and the parts' answers to the callers concerned. It does no I/O: the program passes in
// connections, messages and the time, so that a simulation can drive it. An invalid message closes
// its connection with an error; other connections are unaffected.
//
// Not thread-safe. Never blocks.
class ServerProtocol {
 public:
  explicit ServerProtocol(ServerProtocolOptions options);

  using Caller = ps::Caller;
  using Attached = ps::Attached;
  struct Answer {
    Caller to = -1;
    Message message;
    bool hangs_up = false;  // end the connection after sending; close() has been done
  };
  using Answers = std::vector<Answer>;

  // Adds a new connection.
  void open(Caller caller) { membership_.open(caller); }
  // The connection was closed by the peer, or is lost.
  void close(Caller caller, std::uint64_t now_ns, Answers& answers);
  // Handles a message. Appends all answers that it leads to, also those to other callers.
  void take(Caller caller, Message message, const Attached& attached, std::uint64_t now_ns,
            Answers& answers);
  // Answers Refused with `why` and hangs up. For a message that does not decode, and for a caller
  // that must not enter.
  void refuse(Caller caller, const Error& why, std::uint64_t now_ns, Answers& answers) {
    now_ns_ = now_ns;
    hang_up(caller, why, answers);
  }

  // Returns when the next lease ends (monotonic_ns; kNever: none does).
  std::uint64_t next_lease_ns() const { return leases_.next_ns(); }
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
  void end_checkpoints() {
    if (has_parameters()) checkpoint_barrier_.end();
  }
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
  const std::string& job_id() const { return membership_.job_id(); }

  bool all_have_left() const { return membership_.have_all_left(); }
  // Returns the worker that must give the first parameters, if other workers wait for it.
  std::optional<Worker> awaited() const;
  // Returns true if a process that has entered is connected.
  bool has_callers() const { return membership_.has_members(); }
  const Shard* shard() const { return shard_.get(); }  // null before the first declaration
  bool has_parameters() const { return shard_ && shard_->given() && !is_adopted_; }
  // Returns the number of answered pushes that restarts have lost.
  std::uint64_t lost() const { return lost_; }
  Stats stats() const;

 private:
  struct Wait {
    std::uint64_t pushed_ns = 0;  // time of the worker's latest push
    std::uint64_t held_ns = 0;    // time that its answers waited for other workers
  };

  Status handle(Caller caller, Message message, const Attached& attached, Answers& answers);
  // Handles a message of a worker that has declared.
  Status take_declared(Caller caller, Message message, const Attached& attached, Answers& answers);
  Status take_of_tasks(Caller caller, const Message& message, Answers& answers);
  Status enter(Caller caller, const Enter& message, Answers& answers);
  Status declare(Caller caller, const Declare& message, const Attached& attached, Answers& answers);
  Status push(Worker worker, Push message, Answers& answers);
  void depart(Caller caller, bool left, Answers& answers);
  void hear(Worker member);
  void hang_up(Caller caller, const Error& why, Answers& answers);
  template <typename T>
  static Status reply(Caller caller, Result<T> result, Answers& answers) {
    if (!result) return result.error();
    answers.push_back({caller, std::move(result).value()});
    return {};
  }
  // Turn the answers of the shard, and of the tasks, into answers to callers.
  void tell(std::vector<Ack> acks, Answers& answers);
  void give(TaskProtocol::Answers tasks, Answers& answers);
  TaskProtocol::Left who_has_left() const {
    return {.coordinator = membership_.has_coordinator_left(),
            .all_workers = membership_.have_workers_left()};
  }

  Result<std::unique_ptr<Shard>> first_shard(Model model) const;
  void begin_with(std::unique_ptr<Shard> shard);
  Status welcome_back(Worker worker, const Declare& message);
  void give_if_there(Answers& answers);
  void leave_shard(Worker worker);
  void mark(Worker worker, Checkpoint checkpoint);
  void link_journal();
  Wait& wait_of(Worker worker) {
    CIRANDA_ASSERT(static_cast<std::size_t>(worker) < waits_.size());
    return waits_[static_cast<std::size_t>(worker)];
  }

  const ServerProtocolOptions options_;
  std::uint64_t now_ns_ = 0;  // the latest time that the caller has passed in
  Membership membership_;
  Leases leases_;
  Declarations declarations_;
  std::unique_ptr<Shard> shard_;
  bool is_adopted_ = false;            // adopt() was called, and no worker has declared yet
  std::optional<TaskProtocol> tasks_;  // only on server 0 of a job with a coordinator
  VectorWorks works_;
  Averages averages_;
  Journal* journal_ = nullptr;
  CheckpointBarrier checkpoint_barrier_;
  CheckpointAnnouncer announcer_;
  std::vector<Wait> waits_;  // by worker
  std::uint64_t pulls_ = 0;
  std::uint64_t lost_ = 0;  // answered pushes that restarts have lost
};

}  // namespace ciranda::ps
