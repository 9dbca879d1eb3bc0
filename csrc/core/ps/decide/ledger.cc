#include "core/ps/decide/ledger.h"

#include <algorithm>
#include <utility>

#include "core/base/assert.h"
#include "core/ps/decide/refusal.h"
#include "core/wire/codec.h"
#include "core/wire/types.h"

namespace ciranda::ps {
namespace {

constexpr std::uint64_t kTasksMax = std::uint64_t{1} << 32;

}  // namespace

Status Ledger::check(TaskId task, const std::string& call, int copies) const {
  const std::string name = "task " + std::to_string(task);
  if (task == 0 || task > scheduled() + 1) {
    return refused(name + " was scheduled, but the next task is " +
                   std::to_string(scheduled() + 1));
  }
  if (task <= scheduled()) {
    const Task& known = at(task);
    if (known.call == call && known.copies == copies) return {};
    return refused(ErrorCode::kMismatch,
                   name + " is '" + call.substr(0, 200) + "', but was '" +
                       known.call.substr(0, 200) +
                       "' before the coordinator was restarted; its program must schedule the same "
                       "tasks in the same order");
  }
  if (closed_) return refused(name + " was scheduled after the coordinator had ended its schedule");
  if (copies < 1 || copies > kLocalRanksMax) {
    return refused(name + " has copies=" + std::to_string(copies) + "; copies must be 1 to " +
                   std::to_string(kLocalRanksMax));
  }
  if (call.size() > kTaskTextBytesMax) {
    return refused(name + " has arguments of " + std::to_string(call.size()) +
                   " bytes; the limit is " + std::to_string(kTaskTextBytesMax));
  }
  if (bytes_ + kTaskBytes + call.size() > bytes_max_) {
    return refused(name + " and the tasks before it take more than " + std::to_string(bytes_max_) +
                   " bytes with their results");
  }
  return {};
}

Status Ledger::schedule(TaskId task, std::string call, int copies) {
  Status checked = check(task, call, copies);
  if (checked.ok() && task > scheduled()) add(std::move(call), copies);
  return checked;
}

void Ledger::add(std::string call, int copies) {
  bytes_ += kTaskBytes + call.size();
  tasks_.push_back({.call = std::move(call), .copies = copies, .workers = {}, .outcome = {}});
  waiting_.push_back(scheduled());
}

Status Ledger::close(TaskId tasks) {
  if (tasks != scheduled()) {
    return refused(ErrorCode::kMismatch, "the coordinator ended after " + std::to_string(tasks) +
                                             " tasks, but " + std::to_string(scheduled()) +
                                             " were scheduled before it was restarted");
  }
  closed_ = true;
  return {};
}

const TaskOutcome* Ledger::outcome(TaskId task) const {
  if (task == 0 || task > scheduled() || !at(task).outcome) return nullptr;
  return &*at(task).outcome;
}

void Ledger::ask(Worker worker) {
  CIRANDA_ASSERT(static_cast<std::size_t>(worker) < asking_.size());
  release(worker);
  asking_[static_cast<std::size_t>(worker)] = true;
}

Result<bool> Ledger::finish(Worker worker, TaskId task, TaskOutcome outcome) {
  if (task == 0 || task > scheduled()) {
    return refused("worker " + std::to_string(worker) + " has done task " + std::to_string(task) +
                   ", which was not scheduled");
  }
  if (at(task).outcome) return false;
  if (bytes_ + outcome.text.size() > bytes_max_) {
    outcome = {.failed = true,
               .text = "the results of this job's tasks take more than " +
                       std::to_string(bytes_max_) +
                       " bytes with the tasks' arguments; let tasks write large results to files"};
  }
  settle(task, std::move(outcome));
  return true;
}

void Ledger::settle(TaskId task, TaskOutcome outcome) {
  CIRANDA_ASSERT(!at(task).outcome);  // I30: the first outcome counts
  bytes_ += outcome.text.size();
  if (outcome.failed) failed_.push_back(task);
  at(task).outcome = std::move(outcome);
  at(task).workers.clear();
  std::erase(given_, task);  // if it was released instead, next_for() skips it
  while (settled_ < scheduled() && at(settled_ + 1).outcome) ++settled_;
}

void Ledger::leave(Worker worker) {
  CIRANDA_ASSERT(static_cast<std::size_t>(worker) < asking_.size());
  release(worker);
  asking_[static_cast<std::size_t>(worker)] = false;
}

// The worker's tasks that no other worker has become the first in waiting_.
void Ledger::release(Worker worker) {
  for (std::size_t i = given_.size(); i-- > 0;) {
    const TaskId task = given_[i];
    if (std::erase(at(task).workers, worker) == 0 || !at(task).workers.empty()) continue;
    waiting_.push_front(task);
    given_.erase(given_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

TaskId Ledger::next_for(Worker worker) {
  while (!waiting_.empty()) {
    const TaskId task = waiting_.front();
    waiting_.pop_front();
    if (at(task).outcome) continue;
    CIRANDA_ASSERT(at(task).workers.empty());  // by release()
    given_.push_back(task);
    at(task).workers.push_back(worker);
    return task;
  }
  for (const TaskId task : given_) {  // the oldest first
    Task& given = at(task);
    CIRANDA_ASSERT(!given.outcome && !given.workers.empty());  // I30: by settle(), release()
    if (static_cast<int>(given.workers.size()) >= given.copies) continue;
    given.workers.push_back(worker);
    return task;
  }
  return 0;
}

std::vector<Ledger::Assignment> Ledger::assign() {
  std::vector<Assignment> assigned;
  const bool all_done = closed_ && settled_ == scheduled();
  for (std::size_t i = 0; i < asking_.size(); ++i) {
    if (!asking_[i]) continue;
    const auto worker = static_cast<Worker>(i);
    const TaskId task = next_for(worker);
    if (task == 0 && !all_done) continue;
    CIRANDA_ASSERT(task != 0 || given_.empty());  // I30: nobody has a task that is not done
    asking_[i] = false;
    assigned.push_back({.to = worker, .task = task, .call = {}});
    if (task != 0) assigned.back().call = at(task).call;
  }
  return assigned;
}

void Ledger::save(std::vector<std::byte>& out) const {
  Writer writer(out);
  writer.u8(closed_ ? 1 : 0);
  writer.varint(tasks_.size());
  for (const Task& each : tasks_) {
    writer.varint(each.call.size());
    writer.text(each.call);
    writer.varint(static_cast<std::uint64_t>(each.copies));
    writer.u8(!each.outcome ? 0 : each.outcome->failed ? 2 : 1);
    if (!each.outcome) continue;
    writer.varint(each.outcome->text.size());
    writer.text(each.outcome->text);
  }
}

Result<Ledger> Ledger::restore(std::span<const std::byte> saved, int workers,
                               std::size_t bytes_max) {
  Reader in(saved);
  Ledger ledger(workers, bytes_max);
  const bool closed = in.u8("ledger.closed", 1) != 0;
  const std::size_t tasks = in.count("ledger.tasks", kTasksMax, 3);
  for (TaskId task = 1; task <= tasks && in.ok(); ++task) {
    std::string call(in.text("ledger.call", in.count("ledger.call", kTaskTextBytesMax, 1)));
    const auto copies = static_cast<int>(in.varint("ledger.copies", kLocalRanksMax));
    const std::uint8_t state = in.u8("ledger.outcome", 2);
    TaskOutcome outcome{.failed = state == 2, .text = {}};
    if (state != 0) {
      outcome.text = in.text("ledger.text", in.count("ledger.text", kLedgerBytesMax, 1));
    }
    if (in.ok() && copies == 0) in.fail("ledger.copies", "are none");
    if (!in.ok()) break;
    ledger.add(std::move(call), copies);
    if (state != 0) ledger.settle(task, std::move(outcome));
  }
  if (in.ok() && in.remaining() > 0) in.fail("ledger", "goes on after its end");
  if (!in.ok()) return in.error();
  ledger.closed_ = closed;
  return ledger;
}

}  // namespace ciranda::ps
