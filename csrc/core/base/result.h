#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "core/base/assert.h"

namespace ciranda {

// Kinds of errors, for programs. Each has a row in docs/errors.md and in python/ciranda/errors.py.
// The values travel in frames: append only.
enum class ErrorCode : unsigned char {
  kInvalidArgument = 1,  // the caller's argument is refused before anything was sent
  kNotInitialized = 2,   // no World: before init, after shutdown
  kDuplicateName = 3,    // this rank already has an unfinished submission of that name
  kMismatch = 4,         // ranks disagree about shape, dtype, op or root
  kRankLost = 5,         // a rank died or was cut off; `rank` says which
  kRankLeft = 6,         // a rank shut down while others still need it
  kShutdown = 7,         // this rank shut down while the operation was pending
  kForked = 8,           // used in a child made by fork
  kLimit = 9,            // a limit of wire/types.h would be exceeded
  kMalformed = 10,       // bytes from outside do not decode
  kSystem = 11,          // the operating system refused; `sys_errno` says why
  kTimeout = 12,         // ranks did not show up in time
  kUnsupported = 13,     // understood, but not implemented
};

// An error of core, as a value: a code, one sentence for people, and the rank or tensor concerned.
struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::kSystem;
  std::string text;
  int rank = -1;      // the rank at fault, if there is one
  int sys_errno = 0;  // errno, if a system call failed
  std::string tensor = {};

  // "<what>: <strerror(errno)>", with the errno kept.
  static Error from_errno(std::string_view what, int error_number);
};

// Either a value or an Error, checked at run time: calling value() on an error breaks an invariant.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    CIRANDA_ASSERT(ok());
    return *std::get_if<0>(&state_);
  }
  const T& value() const& {
    CIRANDA_ASSERT(ok());
    return *std::get_if<0>(&state_);
  }
  T&& value() && {
    CIRANDA_ASSERT(ok());
    return std::move(*std::get_if<0>(&state_));
  }
  const Error& error() const {
    CIRANDA_ASSERT(!ok());
    return *std::get_if<1>(&state_);
  }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    CIRANDA_ASSERT(!ok());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace ciranda

// Returns the error of `expression` from the calling function, if there is one.
#define CIRANDA_TRY(expression)                                                                  \
  do {                                                                                           \
    if (auto ciranda_status = (expression); !ciranda_status.ok()) return ciranda_status.error(); \
  } while (false)
