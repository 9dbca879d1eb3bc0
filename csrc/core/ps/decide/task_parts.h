#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "core/wire/codec.h"

namespace ciranda::ps {

// Of what a coordinator has given workers to do; from 1, in the order in which it was scheduled. 0:
// none.
using TaskId = std::uint64_t;

// What is to be done, and what has come of it.
inline constexpr std::size_t kTaskTextBytesMax = std::size_t{64} * 1024;

// What of a task a push is. A task whose worker was lost is done again by another one, which pushes
// the same parts: each counts once.
struct TaskPart {
  TaskId task = 0;
  std::uint64_t part = 0;  // the first push of the task is 1
  TaskId settled = 0;      // all tasks up to this one were done when the task was given
  bool operator==(const TaskPart&) const = default;
};

// Which parts of tasks a server has had.
//
// Not thread-safe.
class TaskParts {
 public:
  // False where it was there before, or its task is over. What is of no task is always new.
  bool add(const TaskPart& part);

  void save(Writer& out) const;
  void restore(Reader& in);  // what is wrong is in.error()

 private:
  TaskId settled_ = 0;
  std::map<TaskId, std::uint64_t> parts_;  // of tasks behind that: so many
};

}  // namespace ciranda::ps
