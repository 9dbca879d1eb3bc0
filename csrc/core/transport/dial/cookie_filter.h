#pragma once

#include "core/base/result.h"
#include "core/wire/handshake.h"

namespace ciranda {

// From now on the kernel completes a call at `listener` only when the first bytes that the caller
// sends are `cookie`, and drops all other packets but those that open or reset a connection: a
// stranger costs the kernel a comparison, and this process nothing. Calls that were completed
// before wait in the listener's queue as they did. kSystem where the kernel takes no socket
// filters.
//
// A connection inherits its listener's filter, which then drops what it should pass: let_all_in()
// comes before any byte is read from it, and its peer waits for an answer after the first packet.
Status let_in_only(int listener, const Cookie& cookie);

// Takes the filter off a listener or connection; one that has none stays as it is.
void let_all_in(int socket) noexcept;

}  // namespace ciranda
