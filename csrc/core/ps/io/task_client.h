#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/ps/decide/messages.h"
#include "core/ps/io/conversation.h"

namespace ciranda::ps {

// The tasks of a job with a coordinator: a worker takes them, the coordinator schedules them and
// has servers work with vectors. Tasks are server 0's; see Ledger.
//
// Thread-safe. The calls block until the servers have answered.
class TaskClient {
 public:
  // `conversation` must outlive this object.
  explicit TaskClient(Conversation& conversation) : conversation_(conversation) {}

  // For workers: reports the outcome of the previous task, and blocks until there is another one.
  // Task 0 means that nothing is left to do. Later pushes are parts of the new task.
  Result<Given> take(bool failed, std::string text) EXCLUDES(conversation_.mutex());
  // For the coordinator. schedule() does not wait: a later call returns a refusal.
  Result<TaskId> schedule(std::string call, int copies) EXCLUDES(conversation_.mutex());
  Status close() EXCLUDES(conversation_.mutex());
  // See AskTask.
  Result<TaskStatus> ask(const AskTask& question) EXCLUDES(conversation_.mutex());
  // For the coordinator: has all servers do the work, and returns the dot products, summed over the
  // servers. Chooses work.number.
  Result<std::vector<double>> work(VectorWork work) EXCLUDES(conversation_.mutex());

 private:
  Conversation& conversation_;
  std::uint64_t works_ GUARDED_BY(conversation_.mutex()) = 0;  // number of the latest VectorWork
};

}  // namespace ciranda::ps
