#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/ps/decide/journal.h"
#include "core/ps/decide/ledger.h"
#include "core/ps/decide/messages.h"

namespace ciranda::ps {

// Decides what server 0 answers to the coordinator, and to workers that take tasks.
//
// Not thread-safe. Never blocks.
class TaskProtocol {
 public:
  explicit TaskProtocol(int workers) : workers_(workers), ledger_(workers) {}

  struct Answer {
    Worker to = -1;
    Message message;
  };
  using Answers = std::vector<Answer>;

  // The processes that have left in order and will not return.
  struct Left {
    bool coordinator = false;
    bool all_workers = false;
  };

  // Returns the coordinator's number.
  Worker coordinator() const { return workers_; }
  // Returns true if take() handles such a message.
  static bool concerns(const Message& message);
  // Handles a message and appends all answers that it leads to. An error: the message is invalid.
  Status take(Worker from, const Message& message, Left left, Answers& answers);
  // `who` is gone.
  void leave(Worker who, Left left, Answers& answers);
  // `who` is silent: other workers may do its task.
  void fall_silent(Worker who, Left left, Answers& answers);
  TaskId scheduled() const { return ledger_.scheduled(); }

  // Writes every change of the ledger to `journal` from here on, before the change is answered.
  // null: to none.
  void keep_journal(Journal* journal) { journal_ = journal; }
  Status repeat(const Change& change);
  void save(std::vector<std::byte>& out) const { ledger_.save(out); }
  Status restore(std::span<const std::byte> saved);

 private:
  Status schedule(const Schedule& message);
  Status close(const CloseTasks& message);
  Status ask(const AskTask& message);
  Status take(Worker worker, const TakeTask& message);
  void write(const Change& change);
  void answer(Left left, Answers& answers);
  std::optional<Message> answer_to(const AskTask& question, Left left) const;
  TaskStatus status(TaskId task) const;

  const int workers_;
  Ledger ledger_;
  std::vector<Worker> waiting_;      // workers whose TakeTask is unanswered
  std::optional<AskTask> question_;  // the coordinator's, if unanswered
  Journal* journal_ = nullptr;
};

}  // namespace ciranda::ps
