#include "core/base/result.h"

#include <cstring>

namespace ciranda {

Error Error::from_errno(std::string_view what, int error_number) {
  char buffer[128];
  // The GNU form returns the text; it may or may not use the buffer.
  const char* reason = ::strerror_r(error_number, buffer, sizeof buffer);
  return {.code = ErrorCode::kSystem,
          .text = std::string(what) + ": " + reason,
          .sys_errno = error_number};
}

}  // namespace ciranda
