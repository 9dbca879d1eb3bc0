#pragma once

#include <cstddef>

#include "core/wire/codec.h"
#include "core/wire/messages.h"

namespace ciranda {

// A RequestSpec in a frame, see docs/protocol.md.

std::size_t spec_bytes(const RequestSpec& spec);
// Of a spec that check_spec() has accepted.
void write_spec(Writer& out, const RequestSpec& spec);
// Into a new spec. What check_spec() refuses is a fault of the reader.
void read_spec(Reader& in, RequestSpec& spec);

}  // namespace ciranda
