#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "core/wire/codec.h"

namespace ciranda::ps {

// The number of a coordinator's task, from 1 in the order of scheduling. 0: no task.
using TaskId = std::uint64_t;

// Limit of a task's call, and of its outcome.
inline constexpr std::size_t kTaskTextBytesMax = std::size_t{64} * 1024;

// The part of a task that a push is. If a task's worker is lost, another worker does the task again
// and pushes the same parts. Each part counts once.
struct TaskPart {
  TaskId task = 0;
  std::uint64_t part = 0;  // number of the push within the task, from 1
  TaskId settled = 0;      // all tasks up to this one were done when the task was given
  bool operator==(const TaskPart&) const = default;
};

// The parts of tasks that a server has received.
//
// Not thread-safe.
class TaskParts {
 public:
  // Returns false if the part was added before, or its task is settled. A push without a task is
  // always new.
  bool add(const TaskPart& part);

  void save(Writer& out) const;
  void restore(Reader& in);  // sets in.error() if the bytes are invalid

 private:
  TaskId settled_ = 0;
  std::map<TaskId, std::uint64_t> parts_;  // latest part, by task above settled_
};

}  // namespace ciranda::ps
