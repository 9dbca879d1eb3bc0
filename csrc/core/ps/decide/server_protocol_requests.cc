// Handles the requests of workers other than Push, and those of the coordinator.
#include <algorithm>
#include <utility>

#include "core/base/assert.h"
#include "core/ps/decide/refusal.h"
#include "core/ps/decide/server_protocol.h"

namespace ciranda::ps {

Stats ServerProtocol::stats() const {
  if (!shard_) return {};
  Stats stats = stats_of(*shard_);
  stats.pulls = pulls_;
  stats.lost = lost_;
  for (const Member& each : members_) {
    stats.workers.push_back({.here = each.caller >= 0,
                             .pushes = shard_->pushes(static_cast<Worker>(stats.workers.size())),
                             .held_ns = each.held_ns});
  }
  return stats;
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
  if (std::holds_alternative<MoveGradients>(message)) {
    const auto memory = attached.memory(shard_->layout().gradient_bytes());
    if (!memory) return memory.error();
    shard_->move_gradients(connection.worker, memory.value());
    return {};
  }
  return reply(caller, answer_from(*shard_, connection.worker, message, attached), answers);
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
