#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/ps/decide/shard.h"

namespace ciranda::ps {

// Of calls and outcomes, with kTaskBytes for each.
inline constexpr std::size_t kLedgerBytesMax = std::size_t{1} << 30;
inline constexpr std::size_t kTaskBytes = 16;

// What became of a task.
struct TaskOutcome {
  bool failed = false;
  std::string text;  // what it has returned, or why it failed, as the program writes it
  bool operator==(const TaskOutcome&) const = default;
};

// What a coordinator has workers do: which worker has which task, and what came of it. A worker
// that is gone leaves its task to another one; the outcome that comes first counts.
//
// A coordinator that is started again runs its program from the beginning, and so schedules the
// same tasks in the same order: those that were done have their outcome at once.
//
// Not thread-safe. Never blocks.
class Ledger {
 public:
  explicit Ledger(int workers, std::size_t bytes_max = kLedgerBytesMax)
      : asking_(static_cast<std::size_t>(workers)), bytes_max_(bytes_max) {}

  // --- The coordinator's ---

  // The next task, or one of before, which has to be the same: kMismatch. `call` says what to do,
  // as the program writes it. `copies`: so many workers may do it at a time; a second one gets it
  // once there is nothing else to do, for the first may be slow.
  Status schedule(TaskId task, std::string call, int copies = 1);
  // There are no more than the first `tasks`: workers that ask are told that nothing is left to do
  // once these are done.
  Status close(TaskId tasks);
  TaskId scheduled() const { return tasks_.size(); }
  bool closed() const { return closed_; }
  // Null: it is not done.
  const TaskOutcome* outcome(TaskId task) const;
  // All tasks up to this one are done.
  TaskId settled() const { return settled_; }
  // Those that have failed, in the order in which they did.
  const std::vector<TaskId>& failed() const { return failed_; }

  // --- The workers' ---

  // It has nothing to do, whatever it was given before.
  void ask(Worker worker);
  // False where that task's outcome is known already. One for which there is no room left is that
  // the task has failed. kInvalidArgument: there is no such task.
  Result<bool> finish(Worker worker, TaskId task, TaskOutcome outcome);
  // It has said nothing for long: others may do its task.
  void release(Worker worker);
  // It is gone, or has ended.
  void leave(Worker worker);

  struct Assignment {
    Worker to = -1;
    TaskId task = 0;        // 0: nothing is left to do
    std::string_view call;  // valid until the next call
    bool operator==(const Assignment&) const = default;
  };
  // Who has asked, and is given something now; each is told once.
  std::vector<Assignment> assign();

  // --- What is kept ---

  // Nobody has a task afterwards: a server that was made again does not know who is there.
  void save(std::vector<std::byte>& out) const;
  static Result<Ledger> restore(std::span<const std::byte> saved, int workers,
                                std::size_t bytes_max = kLedgerBytesMax);

 private:
  struct Task {
    std::string call;
    int copies = 1;
    std::vector<Worker> workers;  // that have it
    std::optional<TaskOutcome> outcome;
  };
  Task& at(TaskId task) { return tasks_[task - 1]; }
  const Task& at(TaskId task) const { return tasks_[task - 1]; }
  Status check(TaskId task, const std::string& call, int copies) const;
  void add(std::string call, int copies);
  void settle(TaskId task, TaskOutcome outcome);
  TaskId next_for(Worker worker);

  std::deque<Task> tasks_;
  std::deque<TaskId> waiting_;  // to be given, unless done; what a worker has left comes first
  std::vector<TaskId> given_;   // to workers, in that order, and not done
  std::vector<bool> asking_;    // by worker
  TaskId settled_ = 0;
  std::size_t bytes_ = 0;  // of all calls and outcomes
  std::size_t bytes_max_;
  std::vector<TaskId> failed_;
  bool closed_ = false;
};

}  // namespace ciranda::ps
