#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/base/result.h"

namespace ciranda {

// Returns the value of a variable, or null if it is not set. In production it reads the environment
// of the process.
using Getenv = std::function<const char*(const char* name)>;

// Returns kInvalidArgument, with a text that names the variable, its value and the values that are
// allowed.
Error bad_value(const char* name, const char* value, const std::string& expected);

// Parses environment variables. An empty variable counts as not set. `getenv` must outlive this
// object.
class Environment {
 public:
  explicit Environment(const Getenv& getenv) : getenv_(getenv) {}

  // Returns null if the variable is not set or `name` is null.
  const char* text(const char* name) const;
  // Returns bad_value() unless the variable is a whole number from `low` to `high`. Keeps `value`
  // if the variable is not set or `name` is null.
  Status integer(const char* name, std::int64_t low, std::int64_t high, std::int64_t& value) const;
  Status integer(const char* name, std::int64_t low, std::int64_t high, int& value) const;

 private:
  const Getenv& getenv_;
};

}  // namespace ciranda
