#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

namespace ciranda::testing {

// CIRANDA_TEST_REQUIRE=all, as in tests/conftest.py: what would skip fails.
inline bool all_required() {
  const char* value = std::getenv("CIRANDA_TEST_REQUIRE");
  return value != nullptr && std::string_view(value) == "all";
}

}  // namespace ciranda::testing

// Ends a test that this machine cannot run.
#define CIRANDA_SKIP(why)                                             \
  do {                                                                \
    if (::ciranda::testing::all_required()) {                         \
      FAIL() << (why) << "; CIRANDA_TEST_REQUIRE=all allows no skip"; \
    }                                                                 \
    GTEST_SKIP() << (why);                                            \
  } while (false)
