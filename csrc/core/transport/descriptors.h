#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace ciranda {

// Raises this process's soft limit of open files (RLIMIT_NOFILE), at most to the hard one, if it is
// below `wanted`. When that is not enough: one sentence that says so, and what to do; the rank may
// still get by. Thread-safe.
std::optional<std::string> raise_descriptor_limit(std::size_t wanted);

}  // namespace ciranda
