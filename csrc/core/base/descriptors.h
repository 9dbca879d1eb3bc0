#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace ciranda {

// Raises this process's soft limit of open files (RLIMIT_NOFILE), at most to the hard one, if it is
// below `wanted`. When that is not enough: one sentence that says so, and what to do; the rank may
// still get by. Thread-safe.
std::optional<std::string> raise_descriptor_limit(std::size_t wanted);

// Opens /dev/null as those of descriptors 0 to 2 that are closed: else a socket or a file becomes
// one, and what the program says goes there. Thread-safe.
void open_standard_descriptors();

}  // namespace ciranda
