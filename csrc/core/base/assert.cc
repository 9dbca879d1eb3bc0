#include "core/base/assert.h"

#include <cstdio>
#include <cstdlib>

namespace ciranda::internal {

void assertion_failed(const char* expression, const char* file, int line) noexcept {
  std::fprintf(stderr, "ciranda: broken invariant: %s at %s:%d\n", expression, file, line);
  std::abort();
}

}  // namespace ciranda::internal
