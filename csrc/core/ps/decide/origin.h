#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/wire/codec.h"

namespace ciranda::ps {

inline constexpr std::size_t kJobIdBytesMax = 256;

// By what workers of one job know each other whose servers are started by hand: two jobs may have
// been told the same servers. What is empty or 0 is not known.
struct Origin {
  std::string job;            // what its starter, or the user, calls it
  std::uint64_t host = 0;     // on which these two are known: numbers without another meaning
  std::uint64_t process = 0;  // the worker
  std::uint64_t starter = 0;  // whoever has given the workers their numbers; it may be one of them
  bool operator==(const Origin&) const = default;
};
// Why they cannot be of one job, as the end of a sentence on the second; empty: they may be.
std::string difference(const Origin& first, const Origin& second);

// At the end of Enter.
void write(Writer& out, const Origin& origin);
void read(Reader& in, Origin& origin);

}  // namespace ciranda::ps
