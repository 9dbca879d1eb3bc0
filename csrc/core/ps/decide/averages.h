#pragma once

#include <map>
#include <string>

#include "core/base/result.h"
#include "core/ps/decide/messages.h"
#include "core/ps/decide/model.h"

namespace ciranda::ps {

// The latest values that workers have given, by name.
//
// Not thread-safe. Never blocks.
class Averages {
 public:
  // Keeps the worker's value and returns the mean of all workers' latest values under its name.
  // kLimit: there are too many names.
  Result<Averaged> add(Worker worker, const Average& value);

 private:
  std::map<std::string, std::map<Worker, double>> latest_;
};

}  // namespace ciranda::ps
