#pragma once

#include "core/base/result.h"
#include "core/wire/handshake.h"

namespace ciranda {

// Makes the kernel complete a call at `listener` only if the first bytes from the caller are
// `cookie`. The kernel drops all other packets except those that open or reset a connection. So a
// stranger costs the kernel one comparison, and this process nothing. Calls that were completed
// earlier stay in the listener's queue. Returns kSystem if the kernel takes no socket filters.
//
// An accepted connection inherits the filter, which would drop its later packets. So the acceptor
// calls let_all_in() on it before it reads a byte, and the caller waits for an answer after its
// first packet.
Status let_in_only(int listener, const Cookie& cookie);

// Removes the filter of a listener or connection, if it has one.
void let_all_in(int socket) noexcept;

}  // namespace ciranda
