#pragma once

#include <stdexcept>
#include <utility>

#include "core/base/result.h"

namespace ciranda {

// Core's Error as an exception: the torch layer and the bindings throw, core never does.
class Exception : public std::runtime_error {
 public:
  explicit Exception(Error error) : std::runtime_error(error.text), error_(std::move(error)) {}
  const Error& error() const { return error_; }

 private:
  Error error_;
};

inline void check(const Status& status) {
  if (!status) throw Exception(status.error());
}

template <typename T>
T unwrap(Result<T> result) {
  if (!result) throw Exception(result.error());
  return std::move(result).value();
}

}  // namespace ciranda
