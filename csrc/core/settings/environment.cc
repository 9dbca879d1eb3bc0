#include "core/settings/environment.h"

#include <charconv>
#include <climits>
#include <cstring>

#include "core/base/assert.h"

namespace ciranda {

Error bad_value(const char* name, const char* value, const std::string& expected) {
  return {.code = ErrorCode::kInvalidArgument,
          .text = "the environment variable " + std::string(name) + " is '" + value +
                  "'; it should be " + expected};
}

const char* Environment::text(const char* name) const {
  const char* value = name != nullptr ? getenv_(name) : nullptr;
  return value != nullptr && *value != '\0' ? value : nullptr;
}

Status Environment::integer(const char* name, std::int64_t low, std::int64_t high,
                            std::int64_t& value) const {
  CIRANDA_ASSERT(low <= high);
  const char* given = text(name);
  if (given == nullptr) return {};
  std::int64_t parsed = 0;
  const char* end = given + std::strlen(given);
  const auto [rest, problem] = std::from_chars(given, end, parsed);
  if (problem != std::errc{} || rest != end || parsed < low || parsed > high) {
    return bad_value(name, given,
                     "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
  }
  value = parsed;
  return {};
}

Status Environment::integer(const char* name, std::int64_t low, std::int64_t high,
                            int& value) const {
  CIRANDA_ASSERT(low >= INT_MIN && high <= INT_MAX);
  std::int64_t wide = value;
  CIRANDA_TRY(integer(name, low, high, wide));
  value = static_cast<int>(wide);
  return {};
}

}  // namespace ciranda
