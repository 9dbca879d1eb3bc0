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

// What server 0 answers to a coordinator and to workers that take tasks from it.
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

  // Who has left in order, and will not come back.
  struct Left {
    bool coordinator = false;
    bool all_workers = false;
  };

  // The number of the coordinator.
  Worker coordinator() const { return workers_; }
  // Whether take() is to have the message.
  static bool concerns(const Message& message);
  // An error: `from` says what cannot be.
  Status take(Worker from, const Message& message, Left left, Answers& answers);
  // It is gone.
  void leave(Worker who, Left left, Answers& answers);
  // Others may do its task.
  void fall_silent(Worker who, Left left, Answers& answers);
  TaskId scheduled() const { return ledger_.scheduled(); }

  // From here on everything that changes the ledger is written there first. null: nowhere.
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
  std::vector<Worker> waiting_;      // whose TakeTask has no answer
  std::optional<AskTask> question_;  // of the coordinator, that has no answer yet
  Journal* journal_ = nullptr;
};

}  // namespace ciranda::ps
