#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/wire/codec.h"

namespace ciranda::ps {

inline constexpr std::size_t kJobIdBytesMax = 256;

// Tells the workers of one job from those of another if servers are started by hand, since two jobs
// may have been given the same servers. A member that is empty or 0 is unknown.
struct Origin {
  std::string job;            // the job's name, from its starter or the user
  std::uint64_t host = 0;     // opaque; `process` and `starter` compare within one host
  std::uint64_t process = 0;  // opaque; the worker's own
  std::uint64_t starter = 0;  // opaque; the process that numbered the workers, maybe one of them
  bool operator==(const Origin&) const = default;
};
// Returns why the two cannot belong to one job, as the end of a sentence about `second`. Empty:
// they may.
std::string difference(const Origin& first, const Origin& second);

// The bytes at the end of Enter.
void write(Writer& out, const Origin& origin);
void read(Reader& in, Origin& origin);

}  // namespace ciranda::ps
