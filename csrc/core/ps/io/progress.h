#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/assert.h"
#include "core/ps/decide/messages.h"

namespace ciranda::ps {

// Counters of one worker since it connected.
struct ClientStats {
  std::array<std::uint64_t, kOutcomeCount> outcomes{};  // pushes by outcome
  std::uint64_t pulls = 0;
  std::uint64_t pushed_bytes = 0;  // size of the gradients
  std::uint64_t waiting_ns = 0;    // for answers to pushes
  std::uint64_t held_ns = 0;       // the part of it in which servers waited for other workers
};

// The state of a client's pushes: decides which numbers the next push has, which checkpoint is due
// for a Mark, and what Declare says about earlier pushes. Pure: no I/O and no clock.
//
// Not thread-safe.
class PushProgress {
 public:
  explicit PushProgress(int servers) : servers_(static_cast<std::size_t>(servers)) {}

  // Takes over the numbers that the server has decided: the next push has a larger one.
  void enter(const Welcome& welcome);
  // Returns the message that declares the model.
  Declare declare(std::size_t model_bytes) const;
  // Returns the message that declares the model to a server that may have been restarted; none if
  // the server has not given this client parameters yet, so that there is nothing to continue.
  std::optional<Declare> declare_again(int server, std::size_t model_bytes) const;
  void hear(int server, const Ready& ready);

  // Sets the number and the clock of the next push.
  Push next(Push push) const;
  // Notes that all servers have been sent the next push, with gradients of `bytes` bytes.
  void sent(std::uint64_t bytes, std::uint64_t now_ns);
  // Returns true between sent() and answered().
  bool unanswered() const { return unanswered_; }
  std::uint64_t sent_ns() const { return sent_ns_; }  // when the latest push was sent
  void hear(int server, const Ack& ack);
  // Notes that all servers have answered the push. This client waited from `begin_ns` to `end_ns`.
  void answered(std::uint64_t begin_ns, std::uint64_t end_ns);
  // Returns the largest Outcome in the answers to the latest push; kApplied if there was no push
  // since the last call.
  Outcome take_outcome() { return std::exchange(outcome_, Outcome::kApplied); }
  // Returns the number of the next push of rows.
  std::uint64_t next_of_rows() { return ++rows_seq_; }
  void pulled() { ++stats_.pulls; }

  // Returns the Mark of a checkpoint that server 0 has announced, once. Call it between two pushes:
  // the earlier ones belong to the checkpoint.
  std::optional<Mark> take_mark();
  // Returns the latest Mark, which a server that was restarted needs again.
  std::optional<Mark> mark() const;
  std::uint64_t announced() const { return announced_; }  // the latest checkpoint; 0: none

  // Returns the versions of the parameters in the client's memory, by server.
  std::vector<std::uint64_t> versions() const;
  const ClientStats& stats() const { return stats_; }

 private:
  struct Told {  // by a server
    bool gave_parameters = false;
    std::uint64_t version = 0;
    std::uint64_t answered = 0;  // seq of the latest push that it has answered
  };
  std::size_t at(int server) const {
    CIRANDA_ASSERT(server >= 0 && static_cast<std::size_t>(server) < servers_.size());
    return static_cast<std::size_t>(server);
  }
  void hear(Told& server, std::uint64_t version, std::uint64_t clock, std::uint64_t checkpoint);

  std::vector<Told> servers_;
  std::uint64_t seq_ = 0;  // of the latest push
  std::uint64_t rows_seq_ = 0;
  std::uint64_t clock_ = 0;
  std::uint64_t announced_ = 0;  // latest checkpoint that server 0 announced
  std::uint64_t marked_ = 0;     // latest checkpoint that take_mark() returned
  bool unanswered_ = false;
  std::uint64_t sent_ns_ = 0;
  // Largest values in the answers to the unanswered push.
  Outcome outcome_so_far_ = Outcome::kApplied;
  std::uint64_t held_so_far_ns_ = 0;
  Outcome outcome_ = Outcome::kApplied;
  ClientStats stats_;
};

// A worker's current task, with the number of pushes that are parts of it, and the tasks that a
// coordinator has scheduled. Pure.
//
// Not thread-safe.
class TaskProgress {
 public:
  // For workers. Later pushes are parts of the given task.
  void begin(const Given& given);
  TaskId task() const { return part_.task; }  // 0: none
  // Return the part that the next push, or the next push of rows, is. Outside of tasks all pushes
  // are part 0 of task 0.
  TaskPart next_part() { return next(part_); }
  TaskPart next_part_of_rows() { return next(rows_part_); }

  // For the coordinator. Numbers the tasks from 1. The result is valid until the next call.
  const Schedule& schedule(std::string call, int copies);
  TaskId scheduled() const { return scheduled_.size(); }
  // Returns the tasks after the first `known`: a restarted server may know fewer than were
  // scheduled.
  std::span<const Schedule> scheduled_after(TaskId known) const;

 private:
  static TaskPart next(TaskPart& part);

  TaskPart part_;       // of the latest push
  TaskPart rows_part_;  // of the latest push of rows
  std::vector<Schedule> scheduled_;
};

// The facts that a client and its servers have told each other. A server that was restarted may
// lack some; Rejoiner tells them again.
struct Progress {
  PushProgress pushes;
  TaskProgress tasks = {};
};

}  // namespace ciranda::ps
