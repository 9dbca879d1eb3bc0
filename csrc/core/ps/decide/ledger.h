#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/assert.h"
#include "core/base/result.h"
#include "core/ps/decide/model.h"
#include "core/ps/decide/task_parts.h"

namespace ciranda::ps {

// Limit of a ledger's calls and outcomes together, with kTaskBytes added for each task.
inline constexpr std::size_t kLedgerBytesMax = std::size_t{1} << 30;
inline constexpr std::size_t kTaskBytes = 16;

// The outcome of a task that is done.
struct TaskOutcome {
  bool failed = false;
  std::string text;  // what it returned, or why it failed, as the program encodes it
  bool operator==(const TaskOutcome&) const = default;
};

// A coordinator's tasks, with their workers and outcomes. If a worker is gone, another worker gets
// its task. The first outcome of a task counts.
//
// A coordinator that is started again runs its program from the beginning, and schedules the same
// tasks in the same order. Tasks that were done have their outcome at once.
//
// Not thread-safe. Never blocks.
class Ledger {
 public:
  explicit Ledger(int workers, std::size_t bytes_max = kLedgerBytesMax)
      : asking_(static_cast<std::size_t>(workers)), bytes_max_(bytes_max) {}

  // --- The coordinator's ---

  // Schedules the next task. A task that is scheduled again must be the same, else kMismatch.
  // `call` says what to do, as the program encodes it. Up to `copies` workers may do the task at a
  // time: when no other task is waiting, a second worker gets it, since the first may be slow.
  Status schedule(TaskId task, std::string call, int copies = 1);
  // Says that no tasks follow the first `tasks`. Workers that ask get task 0 once these are done.
  // kMismatch: another number of tasks was scheduled.
  Status close(TaskId tasks);
  TaskId scheduled() const { return tasks_.size(); }
  bool closed() const { return closed_; }
  // Returns null if the task is not done.
  const TaskOutcome* outcome(TaskId task) const;
  // Returns the largest task that is done together with all earlier tasks; 0: none.
  TaskId settled() const { return settled_; }
  // Returns the failed tasks, in the order in which they failed.
  const std::vector<TaskId>& failed() const { return failed_; }

  // --- The workers' ---

  // The worker asks for a task. Any task that it had is released.
  void ask(Worker worker);
  // Records a task's outcome. Returns false if it has one already. If the outcome exceeds the
  // ledger's limit, the task counts as failed. kInvalidArgument: there is no such task.
  Result<bool> finish(Worker worker, TaskId task, TaskOutcome outcome);
  // The worker is silent: other workers may do its task.
  void release(Worker worker);
  // The worker is gone, or has ended.
  void leave(Worker worker);

  struct Assignment {
    Worker to = -1;
    TaskId task = 0;        // 0: nothing is left to do
    std::string_view call;  // valid until the next call
    bool operator==(const Assignment&) const = default;
  };
  // Returns the workers that have asked and can be answered now, each once for its ask().
  std::vector<Assignment> assign();

  // --- Saved state ---

  // Appends the tasks and outcomes. No worker has a task after restore(), because a new server does
  // not know which workers are connected.
  void save(std::vector<std::byte>& out) const;
  static Result<Ledger> restore(std::span<const std::byte> saved, int workers,
                                std::size_t bytes_max = kLedgerBytesMax);

 private:
  struct Task {
    std::string call;
    int copies = 1;
    std::vector<Worker> workers;  // that do it now
    std::optional<TaskOutcome> outcome;
  };
  Task& at(TaskId task) {
    CIRANDA_ASSERT(task != 0 && task <= tasks_.size());
    return tasks_[task - 1];
  }
  const Task& at(TaskId task) const {
    CIRANDA_ASSERT(task != 0 && task <= tasks_.size());
    return tasks_[task - 1];
  }
  Status check(TaskId task, const std::string& call, int copies) const;
  void add(std::string call, int copies);
  void settle(TaskId task, TaskOutcome outcome);
  TaskId next_for(Worker worker);

  std::deque<Task> tasks_;
  std::deque<TaskId> waiting_;  // for the next workers, unless done; released tasks come first
  std::vector<TaskId> given_;   // to workers, in that order; not done yet
  std::vector<bool> asking_;    // by worker
  TaskId settled_ = 0;
  std::size_t bytes_ = 0;  // calls and outcomes, see kLedgerBytesMax
  std::size_t bytes_max_;
  std::vector<TaskId> failed_;
  bool closed_ = false;
};

}  // namespace ciranda::ps
