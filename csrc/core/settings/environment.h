#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/base/result.h"

namespace ciranda {

// A source of variables: null when not set. The process environment in production.
using Getenv = std::function<const char*(const char* name)>;

// kInvalidArgument: names the variable, its value and what it should be.
Error bad_value(const char* name, const char* value, const std::string& expected);

// Variables as what they mean; an empty one is not set. `getenv` must outlive it.
class Environment {
 public:
  explicit Environment(const Getenv& getenv) : getenv_(getenv) {}

  // Null when it is not set, or has no name.
  const char* text(const char* name) const;
  // Keeps `value` when the variable is not set, or has no name.
  Status integer(const char* name, std::int64_t low, std::int64_t high, std::int64_t& value) const;
  Status integer(const char* name, std::int64_t low, std::int64_t high, int& value) const;

 private:
  const Getenv& getenv_;
};

}  // namespace ciranda
