#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/base/secret.h"

namespace ciranda {

// The job's key, as the starter hands it over. Never from the environment itself, which others of
// this user's processes and every child can read.

// Reads the key from an inherited pipe or memfd and closes it: exactly 32 bytes, then the end. A
// pipe is waited for until the deadline (monotonic_ns); kTimeout after it.
Result<Secret> read_key(Fd fd, std::uint64_t deadline_ns);

// Reads the key from a file of exactly 32 bytes that belongs to this user or to root and that
// nobody else can read. kInvalidArgument names the file and what to do.
Result<Secret> read_key_file(const std::string& path);

// Fills `bytes` from the kernel's random numbers.
void fill_random(std::span<std::byte> bytes);
std::uint64_t random_number();

}  // namespace ciranda
