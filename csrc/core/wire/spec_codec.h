#pragma once

#include <cstddef>

#include "core/wire/codec.h"
#include "core/wire/messages.h"

namespace ciranda {

// Encodes and decodes a RequestSpec within a frame, see docs/protocol.md.

std::size_t spec_bytes(const RequestSpec& spec);
// Asserts that check_spec() accepts `spec`.
void write_spec(Writer& out, const RequestSpec& spec);
// Reads into a newly constructed spec. If check_spec() refuses it, the reader records a fault.
void read_spec(Reader& in, RequestSpec& spec);

}  // namespace ciranda
