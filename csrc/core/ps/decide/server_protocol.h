#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/ps/decide/checkpoint_barrier.h"
#include "core/ps/decide/journal.h"
#include "core/ps/decide/messages.h"
#include "core/ps/decide/server_protocol_state.h"
#include "core/ps/decide/shard.h"
#include "core/ps/decide/task_protocol.h"

namespace ciranda::ps {

struct ServerProtocolOptions {
  std::string job_id;
  int server = 0;
  int servers = 1;
  int workers = 1;
  // A worker that has said nothing for so long does not keep the others waiting.
  std::uint64_t lease_ns = 10'000'000'000;
  bool keeps_state = false;  // which its workers are told
  bool resumes = false;      // goes on with what was kept in another job, which is over
  // One more process gives tasks to the workers: see Enter, TaskProtocol.
  bool has_coordinator = false;
  // Server 0: a checkpoint is made after so many pushes (rounds), and after so long. 0: not.
  std::uint64_t checkpoint_pushes = 0;
  std::uint64_t checkpoint_ns = 0;
};

// Decides what a server answers to its workers: who may enter, whose parameters are the first, when
// a lease is over. It does no I/O: the caller passes in connections, messages and the time, so that
// a simulation can drive it. An invalid message closes its connection with an error; other
// connections are unaffected.
//
// Not thread-safe. Never blocks.
class ServerProtocol {
 public:
  explicit ServerProtocol(ServerProtocolOptions options);

  using Caller = int;  // the number of a connection, as long as it is open
  struct Answer {
    Caller to = -1;
    Message message;
    bool hangs_up = false;  // afterwards; it is closed() by then
  };
  using Answers = std::vector<Answer>;

  // What has come with a message.
  struct Attached {
    std::function<Result<std::vector<std::byte>>(std::uint64_t bytes)> model_blob;  // a copy
    // Mapped as long as the connection is open, but for what is fetched, which is only written to.
    std::function<Result<std::byte*>(std::uint64_t bytes)> memory;
  };

  void open(Caller caller, std::uint64_t now_ns);
  // It has hung up, or is gone.
  void close(Caller caller, std::uint64_t now_ns, Answers& answers);
  void take(Caller caller, Message message, const Attached& attached, std::uint64_t now_ns,
            Answers& answers);
  // Hangs up on who says what is no message.
  void refuse(Caller caller, const Error& why, std::uint64_t now_ns, Answers& answers);

  // When a lease ends next (monotonic_ns, kNever), and what follows when it has.
  std::uint64_t next_lease_ns() const;
  void end_leases(std::uint64_t now_ns, Answers& answers);

  // From here on everything that a server needs to be made again is written there first.
  void keep_journal(Journal* journal);
  // From here on there are checkpoints.
  void keep_checkpoints(CheckpointKeeper* keeper,
                        Checkpoint latest);  // see CheckpointBarrier::keep()
  // Begins with what this shard holds, and the first worker's mode; nobody has entered yet.
  void adopt(std::unique_ptr<Shard> shard);
  // All have left: the last checkpoint is begun and closed, where anybody has declared.
  void end_checkpoints();
  // Once the shard has parameters: all that there is to keep but for what lies in arrays().
  void save(std::vector<std::byte>& out) const;
  Shard::Arrays arrays() { return shard_->arrays(); }
  // What save() has written; this protocol is new, and arrays() are to be filled by the caller.
  // Workers that have not left are waited for as long as one lease. kMismatch, kMalformed say what
  // is not this server's.
  Status restore(std::span<const std::byte> saved, std::uint64_t now_ns);
  // See Shard::repeat().
  Status repeat(const Change& change, std::span<const std::byte> data);
  // What was restored is of another job: from here on it is of this one, whose workers are in
  // their first lives. False where it was this one's.
  bool resume();
  const std::string& job_id() const { return job_id_; }  // of what is here: before, another one's

  bool all_have_left() const;
  // Whose parameters are the first, where others wait for them and it has not given them.
  std::optional<Worker> awaited() const;
  // Somebody has entered.
  bool has_callers() const;
  const Shard* shard() const { return shard_.get(); }  // null before the first declaration
  bool has_parameters() const { return shard_ && shard_->given() && !is_adopted_; }
  // Pushes that were answered and that a restart has lost.
  std::uint64_t lost() const { return lost_; }
  Stats stats() const;

 private:
  struct Connection {
    Worker worker = -1;  // none: it has not entered
    std::uint64_t heard_ns = 0;
    std::byte* memory = nullptr;  // once it has declared
    bool waits = false;           // it has declared, and the first parameters are not there
    bool returns = false;         // it has had parameters before
    bool silent = false;          // its lease is over
  };
  struct Member {
    Life life = 0;
    std::uint64_t process = 0;  // of that life
    Origin origin = {};         // the same
    Caller caller = -1;         // none: it is not here
    bool left = false;          // in order
    bool gone = false;          // a life of it has been here, and is not
    std::uint64_t pushed_ns = 0;
    std::uint64_t held_ns = 0;  // that its answers were held back for others
  };

  Status handle(Caller caller, Message message, const Attached& attached, Answers& answers);
  // Of who has declared.
  Status take_declared(Caller caller, Message message, const Attached& attached, Answers& answers);
  Status check(const Enter& message) const;
  Status check_origin(const Enter& message) const;
  Status enter(Caller caller, const Enter& message, Answers& answers);
  Status declare(Caller caller, const Declare& message, const Attached& attached, Answers& answers);
  Status push(Caller caller, Push message, Answers& answers);
  Status take_of_tasks(Caller caller, const Message& message, Answers& answers);
  void give(TaskProtocol::Answers tasks, Answers& answers);
  Status pull_rows(Caller caller, const PullRows& message, const Attached& attached,
                   Answers& answers);
  Status push_rows(Caller caller, const PushRows& message, const Attached& attached,
                   Answers& answers);
  // The numbers of rows, copied, and the memory behind them.
  struct Rows {
    std::vector<std::uint64_t> numbers;
    std::byte* data = nullptr;
  };
  Result<Rows> rows_of(std::uint32_t table, std::uint64_t count, const Attached& attached) const;
  Status work(Caller caller, const VectorWork& message, Answers& answers);
  TaskProtocol::Left who_has_left() const;
  Status average(Caller caller, const Average& message, Answers& answers);
  Status fetch_state(Caller caller, const FetchState& message, const Attached& attached,
                     Answers& answers);
  Status fetch_steps(Caller caller, const Attached& attached, Answers& answers);
  void depart(Caller caller, bool left, Answers& answers);
  Result<std::unique_ptr<Shard>> first_shard(Model model) const;
  void begin_with(std::unique_ptr<Shard> shard);
  Status welcome_back(Worker worker, const Declare& message);
  void leave_shard(Worker worker);
  void begin_job(std::string job_id);
  static Member restored(const SavedProtocol::Member& was);
  void announce_checkpoint();
  void mark(Worker worker, std::uint64_t checkpoint);
  void link_journal();
  Worker giver() const;
  void give_if_there(Answers& answers);
  void hang_up(Caller caller, const Error& why, Answers& answers);
  void tell(std::vector<Ack> acks, Answers& answers);
  void hear(Worker worker);
  Connection& of(Caller caller) { return connections_.at(caller); }
  bool is_coordinator(Worker worker) const { return worker == options_.workers; }
  std::string words_of(Worker worker) const;
  Member& member(Worker worker) {
    return is_coordinator(worker) ? coordinator_ : members_[static_cast<std::size_t>(worker)];
  }

  const ServerProtocolOptions options_;
  std::string job_id_;
  std::map<Caller, Connection> connections_;
  std::vector<Member> members_;
  Member coordinator_;
  std::uint64_t now_ns_ = 0;  // as it was told last
  std::uint64_t pulls_ = 0;
  std::uint64_t lost_ = 0;                  // pushes that were answered and that a restart has lost
  std::uint64_t expected_ns_ = UINT64_MAX;  // until then who was here before one is waited for
  Journal* journal_ = nullptr;
  CheckpointKeeper* keeper_ = nullptr;
  CheckpointBarrier checkpoint_barrier_;
  std::uint64_t announced_ = 0;          // the latest checkpoint; server 0
  std::uint64_t announced_version_ = 0;  // and when that was
  std::optional<std::uint64_t> announced_ns_;
  bool is_adopted_ = false;  // and nobody has declared yet
  std::unique_ptr<Shard> shard_;
  std::optional<TaskProtocol> tasks_;  // of server 0, in a job with a coordinator
  std::vector<VectorsWorked> works_;   // all so far: a coordinator may ask again
  std::map<std::string, std::map<Worker, double>> averages_;  // the latest values by name
};

}  // namespace ciranda::ps
