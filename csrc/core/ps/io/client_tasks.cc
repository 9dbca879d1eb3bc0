// The calls of Client for tasks, which go to server 0, and for vectors.
#include <string>
#include <utility>

#include "core/base/assert.h"
#include "core/ps/io/client.h"

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

Result<Given> Client::take_task(bool failed, std::string text) {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(check_size("the result of a task", text));
  CIRANDA_TRY(conversation_.settle());
  CIRANDA_TRY(conversation_.ask(kServer, TakeTask{.done = conversation_.progress().tasks.task(),
                                                  .failed = failed,
                                                  .text = std::move(text)}));
  auto given = conversation_.hear<Given>(kServer);
  if (!given) return given.error();
  conversation_.progress().tasks.begin(given.value());
  return given;
}

Result<TaskId> Client::schedule(std::string call, int copies) {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(conversation_.check());
  CIRANDA_TRY(check_size("a task with its arguments", call));
  const Schedule& scheduled = conversation_.progress().tasks.schedule(std::move(call), copies);
  CIRANDA_TRY(conversation_.tell(kServer, scheduled));
  return scheduled.task;
}

Status Client::close_tasks() {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(conversation_.check());
  CIRANDA_TRY(
      conversation_.ask(kServer, CloseTasks{.tasks = conversation_.progress().tasks.scheduled()}));
  const auto closed = conversation_.hear<TaskStatus>(kServer);
  return closed ? Status() : Status(closed.error());
}

Result<TaskStatus> Client::ask_task(const AskTask& question) {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(conversation_.check());
  CIRANDA_TRY(conversation_.ask(kServer, question));
  return conversation_.hear<TaskStatus>(kServer);
}

Result<std::vector<double>> Client::work(VectorWork work) {
  const MutexLock lock(conversation_.mutex());
  work.number = ++works_;
  CIRANDA_TRY(conversation_.ask_all(work));
  std::vector<double> dots(work.dots.size());
  for (int server = 0; server < servers(); ++server) {
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
