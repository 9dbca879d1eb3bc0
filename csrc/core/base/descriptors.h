#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace ciranda {

// Raises this process's soft limit of open files (RLIMIT_NOFILE) to `wanted`, but at most to the
// hard limit. If that is not enough, returns one sentence that says so and what to do; the rank may
// still get by. Thread-safe.
std::optional<std::string> raise_descriptor_limit(std::size_t wanted);

// Opens /dev/null as each of descriptors 0 to 2 that is closed. Otherwise a socket or a file would
// get that number and receive the program's output. Thread-safe.
void open_standard_descriptors();

}  // namespace ciranda
