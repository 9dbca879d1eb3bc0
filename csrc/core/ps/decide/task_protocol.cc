#include "core/ps/decide/task_protocol.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "core/base/assert.h"

namespace ciranda::ps {
namespace {

Refused gone(std::string why) {
  return {.code = ErrorCode::kRankLost, .text = std::move(why)};
}

}  // namespace

bool TaskProtocol::concerns(const Message& message) {
  return std::holds_alternative<TakeTask>(message) || std::holds_alternative<Schedule>(message) ||
         std::holds_alternative<CloseTasks>(message) || std::holds_alternative<AskTask>(message);
}

Status TaskProtocol::take(Worker from, const Message& message, Left left, Answers& answers) {
  Status taken;
  if (const auto* wanted = std::get_if<TakeTask>(&message)) {
    if (from == coordinator()) {
      return Error{.code = ErrorCode::kMalformed,
                   .text = "the coordinator asked for a task, as only workers do"};
    }
    taken = take(from, *wanted);
  } else if (from != coordinator()) {
    return Error{.code = ErrorCode::kMalformed,
                 .text = "worker " + std::to_string(from) +
                         " schedules tasks, as only the coordinator does"};
  } else if (const auto* task = std::get_if<Schedule>(&message)) {
    taken = schedule(*task);
  } else if (const auto* last = std::get_if<CloseTasks>(&message)) {
    taken = close(*last);
    if (taken) answers.push_back({from, TaskStatus{.settled = ledger_.settled()}});
  } else if (const auto* question = std::get_if<AskTask>(&message)) {
    taken = ask(*question);
  }
  if (taken) answer(left, answers);
  return taken;
}

void TaskProtocol::write(const Change& change) {
  if (journal_ != nullptr) journal_->write(change, {});
}

Status TaskProtocol::schedule(const Schedule& message) {
  const bool is_new = message.task > ledger_.scheduled();
  CIRANDA_TRY(ledger_.schedule(message.task, message.call, message.copies));
  if (!is_new) return {};
  write({.kind = Change::Kind::kScheduled,
         .task = message.task,
         .copies = message.copies,
         .text = message.call});
  return {};
}

Status TaskProtocol::close(const CloseTasks& message) {
  CIRANDA_TRY(ledger_.close(message.tasks));
  write({.kind = Change::Kind::kTasksClosed, .task = message.tasks});
  return {};
}

Status TaskProtocol::ask(const AskTask& message) {
  if (message.task == 0 || message.task > ledger_.scheduled()) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .text = "there is no task " + std::to_string(message.task) + " of " +
                         std::to_string(ledger_.scheduled())};
  }
  question_ = message;
  return {};
}

// An unknown task was lost with a server that kept its state in memory. It will be scheduled and
// done again, so its outcome is ignored.
Status TaskProtocol::take(Worker worker, const TakeTask& message) {
  if (message.done != 0 && message.done <= ledger_.scheduled()) {
    auto first = ledger_.finish(worker, message.done, {message.failed, message.text});
    if (!first) return first.error();
    if (first.value()) {
      write({.kind = Change::Kind::kTaskDone,
             .task = message.done,
             .failed = message.failed,
             .text = message.text});
    }
  }
  ledger_.ask(worker);
  if (std::ranges::count(waiting_, worker) == 0) waiting_.push_back(worker);
  return {};
}

void TaskProtocol::leave(Worker who, Left left, Answers& answers) {
  if (who == coordinator()) {
    question_.reset();
  } else {
    ledger_.leave(who);
    std::erase(waiting_, who);
  }
  answer(left, answers);
}

void TaskProtocol::fall_silent(Worker who, Left left, Answers& answers) {
  if (who == coordinator()) return;
  ledger_.release(who);
  answer(left, answers);
}

// Appends all answers that are possible now.
void TaskProtocol::answer(Left left, Answers& answers) {
  for (const Ledger::Assignment& each : ledger_.assign()) {
    std::erase(waiting_, each.to);
    answers.push_back(
        {each.to,
         Given{.task = each.task, .settled = ledger_.settled(), .call = std::string(each.call)}});
  }
  if (left.coordinator && !ledger_.closed()) {
    for (const Worker worker : std::exchange(waiting_, {})) {
      ledger_.leave(worker);
      answers.push_back({worker, gone("the coordinator has ended before its work was done")});
    }
  }
  if (!question_) return;
  if (auto answer = answer_to(*question_, left)) {
    question_.reset();
    answers.push_back({coordinator(), std::move(*answer)});
  }
}

std::optional<Message> TaskProtocol::answer_to(const AskTask& question, Left left) const {
  CIRANDA_ASSERT(question.task != 0 && question.task <= ledger_.scheduled());  // by ask()
  if (question.failures < ledger_.failed().size()) {
    return status(ledger_.failed()[static_cast<std::size_t>(question.failures)]);
  }
  if (!question.waits || ledger_.outcome(question.task) != nullptr) return status(question.task);
  if (!left.all_workers) return std::nullopt;
  return gone("all workers have left, but task " + std::to_string(question.task) +
              " is not done; every worker must call ps.run()");
}

TaskStatus TaskProtocol::status(TaskId task) const {
  TaskStatus answer{.task = task, .settled = ledger_.settled(), .text = {}};
  const TaskOutcome* const outcome = ledger_.outcome(task);
  if (outcome == nullptr) return answer;
  answer.done = true;
  answer.failed = outcome->failed;
  answer.text = outcome->text;
  return answer;
}

// -------------------------------------------------------------------------------------------
// Saved state

Status TaskProtocol::repeat(const Change& change) {
  switch (change.kind) {
    case Change::Kind::kScheduled:
      return ledger_.schedule(change.task, change.text, change.copies);
    case Change::Kind::kTaskDone: {
      const auto done = ledger_.finish(0, change.task, {change.failed, change.text});
      return done ? Status() : Status(done.error());
    }
    case Change::Kind::kTasksClosed:
      return ledger_.close(change.task);
    case Change::Kind::kApplied:
    case Change::Kind::kSkipped:
    case Change::Kind::kEntered:
    case Change::Kind::kLeft:
    case Change::Kind::kWorked:
    case Change::Kind::kRows:
    case Change::Kind::kResumed:
      break;
  }
  return Error{.code = ErrorCode::kMalformed, .text = "a stored change belongs to no task"};
}

Status TaskProtocol::restore(std::span<const std::byte> saved) {
  CIRANDA_ASSERT(waiting_.empty() && !question_);  // a new one
  auto ledger = Ledger::restore(saved, workers_);
  if (!ledger) return ledger.error();
  ledger_ = std::move(ledger).value();
  return {};
}

}  // namespace ciranda::ps
