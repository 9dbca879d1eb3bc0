// Handles the requests of workers other than Push, and those of the coordinator.
#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/assert.h"
#include "core/ps/decide/refusal.h"
#include "core/ps/decide/server_protocol.h"

namespace ciranda::ps {

Stats ServerProtocol::stats() const {
  Stats stats;
  if (!shard_) return stats;
  const PushCounters& counters = shard_->counters();
  stats.version = shard_->version();
  stats.held_bytes = shard_->held_bytes();
  stats.outcomes.assign(counters.outcomes.begin(), counters.outcomes.end());
  stats.staleness.assign(counters.staleness.begin(), counters.staleness.end());
  stats.gradient_bytes = shard_->parameters().traffic().gradient_bytes;
  stats.parameter_bytes = shard_->parameters().traffic().parameter_bytes;
  stats.pulls = pulls_;
  stats.lost = lost_;
  for (const Member& each : members_) {
    stats.workers.push_back({.here = each.caller >= 0,
                             .pushes = shard_->pushes(static_cast<Worker>(stats.workers.size())),
                             .held_ns = each.held_ns});
  }
  return stats;
}

Status ServerProtocol::fetch_state(Caller caller, const FetchState& message,
                                   const Attached& attached, Answers& answers) {
  const auto& tables = shard_->model().tables;
  if (message.table >= tables.size() ||
      message.array >= kernels::state_arrays(tables[message.table].rule).size()) {
    return refused(ErrorCode::kMalformed,
                   "a worker asked for state that the optimizer does not have");
  }
  const auto elements = static_cast<std::uint64_t>(shard_->layout().elements(message.table));
  const auto memory = attached.memory(elements * dtype_bytes(tables[message.table].dtype));
  if (!memory) return memory.error();
  shard_->parameters().copy_state(message.table, message.array, memory.value());
  answers.push_back({caller, Fetched{}});
  return {};
}

Status ServerProtocol::fetch_steps(Caller caller, const Attached& attached, Answers& answers) {
  const auto steps = shard_->parameters().steps();
  const auto memory = attached.memory(steps.size_bytes());
  if (!memory) return memory.error();
  std::memcpy(memory.value(), steps.data(), steps.size_bytes());
  answers.push_back({caller, Fetched{}});
  return {};
}

Status ServerProtocol::take_declared(Caller caller, Message message, const Attached& attached,
                                     Answers& answers) {
  CIRANDA_ASSERT(shard_ && shard_->given());  // I22: by give_if_there()
  const Connection& connection = of(caller);
  if (auto* gradients = std::get_if<Push>(&message)) {
    return push(caller, std::move(*gradients), answers);
  }
  if (std::holds_alternative<Pull>(message)) {
    ++pulls_;
    answers.push_back({caller, Ready{.version = shard_->pull(connection.worker),
                                     .clock = shard_->clock(connection.worker),
                                     .checkpoint = announcer_.latest()}});
    return {};
  }
  if (const auto* behind = std::get_if<Mark>(&message)) {
    return mark(connection.worker, behind->checkpoint), Status();
  }
  if (const auto* wanted = std::get_if<FetchState>(&message)) {
    return fetch_state(caller, *wanted, attached, answers);
  }
  if (std::holds_alternative<MoveGradients>(message)) {
    const auto memory = attached.memory(shard_->layout().gradient_bytes());
    if (!memory) return memory.error();
    shard_->move_gradients(connection.worker, memory.value());
    return {};
  }
  if (std::holds_alternative<FetchSteps>(message)) return fetch_steps(caller, attached, answers);
  if (const auto* rows = std::get_if<PullRows>(&message)) {
    return pull_rows(caller, *rows, attached, answers);
  }
  if (const auto* rows = std::get_if<PushRows>(&message)) {
    return push_rows(caller, *rows, attached, answers);
  }
  return refused(ErrorCode::kMalformed, "a worker sent a message that only servers send");
}

// -------------------------------------------------------------------------------------------
// Tables of rows

// Copies the numbers, because the worker shares the memory and may change them at any time.
Result<ServerProtocol::Rows> ServerProtocol::rows_of(std::uint32_t table, std::uint64_t count,
                                                     const Attached& attached) const {
  const auto& tables = shard_->model().row_tables;
  if (table >= tables.size()) {
    return refused(ErrorCode::kMalformed,
                   "there is no table " + std::to_string(table) + " of rows");
  }
  Rows rows;
  if (count == 0) return rows;
  const auto memory =
      attached.memory(count * (sizeof(std::uint64_t) + tables[table].columns * sizeof(float)));
  if (!memory) return memory.error();
  rows.numbers.resize(count);
  std::memcpy(rows.numbers.data(), memory.value(), count * sizeof(std::uint64_t));
  rows.data = memory.value() + count * sizeof(std::uint64_t);
  return rows;
}

Status ServerProtocol::pull_rows(Caller caller, const PullRows& message, const Attached& attached,
                                 Answers& answers) {
  const auto rows = rows_of(message.table, message.count, attached);
  if (!rows) return rows.error();
  CIRANDA_TRY(shard_->pull_rows(message.table, rows.value().numbers, rows.value().data));
  answers.push_back({caller, RowsRead{}});
  return {};
}

Status ServerProtocol::push_rows(Caller caller, const PushRows& message, const Attached& attached,
                                 Answers& answers) {
  const auto rows = rows_of(message.table, message.count, attached);
  if (!rows) return rows.error();
  CIRANDA_TRY(
      shard_->push_rows(of(caller).worker, message, rows.value().numbers, rows.value().data));
  answers.push_back({caller, RowsPushed{}});
  return {};
}

// -------------------------------------------------------------------------------------------
// Tasks

TaskProtocol::Left ServerProtocol::who_has_left() const {
  return {.coordinator = coordinator_.left,
          .all_workers = std::all_of(members_.begin(), members_.end(),
                                     [](const Member& each) { return each.left; })};
}

bool ServerProtocol::all_have_left() const {
  const TaskProtocol::Left left = who_has_left();
  return left.all_workers && (left.coordinator || !options_.has_coordinator);
}

bool ServerProtocol::has_callers() const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [](const auto& each) { return each.second.worker >= 0; });
}

Status ServerProtocol::take_of_tasks(Caller caller, const Message& message, Answers& answers) {
  if (!tasks_) {
    return refused(ErrorCode::kInvalidArgument,
                   options_.has_coordinator
                       ? "only server 0 has the tasks"
                       : "there is no coordinator that gives out tasks; start the job with "
                         "--coordinator");
  }
  TaskProtocol::Answers given;
  CIRANDA_TRY(tasks_->take(of(caller).worker, message, who_has_left(), given));
  give(std::move(given), answers);
  return {};
}

void ServerProtocol::give(TaskProtocol::Answers tasks, Answers& answers) {
  for (TaskProtocol::Answer& each : tasks) {
    const Caller caller = member(each.to).caller;
    if (caller < 0) continue;
    if (auto* refusal = std::get_if<Refused>(&each.message)) {
      hang_up(caller, {.code = refusal->code, .text = std::move(refusal->text)}, answers);
    } else {
      answers.push_back({caller, std::move(each.message)});
    }
  }
}

}  // namespace ciranda::ps
