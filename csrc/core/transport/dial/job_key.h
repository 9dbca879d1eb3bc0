#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/base/secret.h"

namespace ciranda {

// How a rank gets the job's key from the starter. The key is never in the environment itself,
// because the user's other processes and every child can read that.

// Reads the key from an inherited pipe or memfd and closes the descriptor. It must hold exactly 32
// bytes. Blocks on a pipe; returns kTimeout at the deadline (monotonic_ns).
Result<Secret> read_key(Fd fd, std::uint64_t deadline_ns);

// Reads the key from a file of exactly 32 bytes. The file must belong to this user or to root, and
// nobody else may have access to it; otherwise returns kInvalidArgument, which names the file and a
// remedy.
Result<Secret> read_key_file(const std::string& path);

// Fills `bytes` with random numbers of the kernel.
void fill_random(std::span<std::byte> bytes);
std::uint64_t random_number();

}  // namespace ciranda
