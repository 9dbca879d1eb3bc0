#include "core/ps/io/task_client.h"

#include <cstddef>
#include <utility>

namespace ciranda::ps {
namespace {

constexpr int kServer = 0;

Status check_size(const char* what, const std::string& text) {
  if (text.size() <= kTaskTextBytesMax) return {};
  return Error{.code = ErrorCode::kLimit,
               .text = std::string(what) + " takes " + std::to_string(text.size()) +
                       " bytes; the limit is " + std::to_string(kTaskTextBytesMax) +
                       "; pass large data through files or the parameters"};
}

}  // namespace

Result<Given> TaskClient::take(bool failed, std::string text) {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(check_size("the result of a task", text));
  CIRANDA_TRY(conversation_.settle());
  TaskProgress& tasks = conversation_.progress().tasks;
  CIRANDA_TRY(conversation_.ask(
      kServer, TakeTask{.done = tasks.task(), .failed = failed, .text = std::move(text)}));
  auto given = conversation_.hear<Given>(kServer);
  if (!given) return given.error();
  tasks.begin(given.value());
  return given;
}

Result<TaskId> TaskClient::schedule(std::string call, int copies) {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(conversation_.check());
  CIRANDA_TRY(check_size("a task with its arguments", call));
  const Schedule& scheduled = conversation_.progress().tasks.schedule(std::move(call), copies);
  CIRANDA_TRY(conversation_.tell(kServer, scheduled));
  return scheduled.task;
}

Status TaskClient::close() {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(conversation_.check());
  const TaskId tasks = conversation_.progress().tasks.scheduled();
  CIRANDA_TRY(conversation_.ask(kServer, CloseTasks{.tasks = tasks}));
  const auto closed = conversation_.hear<TaskStatus>(kServer);
  return closed ? Status() : Status(closed.error());
}

Result<TaskStatus> TaskClient::ask(const AskTask& question) {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(conversation_.check());
  CIRANDA_TRY(conversation_.ask(kServer, question));
  return conversation_.hear<TaskStatus>(kServer);
}

Result<std::vector<double>> TaskClient::work(VectorWork work) {
  const MutexLock lock(conversation_.mutex());
  work.number = ++works_;
  CIRANDA_TRY(conversation_.ask_all(work));
  std::vector<double> dots(work.dots.size());
  for (int server = 0; server < conversation_.servers(); ++server) {
    const auto values = conversation_.hear<VectorValues>(server);
    if (!values) return values.error();
    if (values.value().dots.size() != dots.size()) {
      return Error{.code = ErrorCode::kMalformed,
                   .text = "server " + std::to_string(server) +
                           " answered with another number of dot products"};
    }
    for (std::size_t i = 0; i < dots.size(); ++i) dots[i] += values.value().dots[i];
  }
  return dots;
}

}  // namespace ciranda::ps
