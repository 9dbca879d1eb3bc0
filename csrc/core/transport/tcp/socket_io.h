#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/fd.h"
#include "core/base/result.h"

namespace ciranda {

// Packets of SOCK_SEQPACKET sockets carry bytes and descriptors (SCM_RIGHTS).
inline constexpr std::size_t kDescriptorsPerPacketMax = 64;

// Sends one packet. Blocks while the peer's queue is full or while too many descriptors are in
// flight.
Status send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> fds);

enum class Received { kPacket, kNothing, kClosed };
struct Packet {
  Received what = Received::kNothing;
  std::size_t bytes = 0;
  std::vector<Fd> fds;
};
// Receives one packet into `buffer`. Never blocks. Its descriptors are close-on-exec. Returns
// kMalformed for a packet that does not fit.
Result<Packet> receive_packet(int socket, std::span<std::byte> buffer);

// Creates two connected, non-blocking SOCK_SEQPACKET sockets.
Result<std::array<Fd, 2>> make_packet_sockets();

// A socket and the events that somebody waits for.
struct Watched {
  int socket = -1;  // -1: no socket, only the deadline counts
  bool readable = false;
  bool writable = false;
  bool operator==(const Watched&) const = default;
};
pollfd poll_for(const Watched& watched);
// Returns the timeout for poll() and epoll_wait() that ends at the deadline (monotonic_ns). It is
// rounded up, so that the deadline has passed when it expires. -1 (no timeout) for kNever.
int poll_timeout_ms(std::uint64_t deadline_ns);

// Blocks until one of the events occurs. Returns false at the deadline (monotonic_ns).
Result<bool> wait_for(const Watched& watched, std::uint64_t deadline_ns);

// Blocks until `socket` is readable or writable. Returns false at the deadline (monotonic_ns).
Result<bool> wait_readable(int socket, std::uint64_t deadline_ns);
Result<bool> wait_writable(int socket, std::uint64_t deadline_ns);

// Waits as wait_readable() does, but returns kShutdown as soon as `interrupt` is readable. -1:
// nothing interrupts.
Result<bool> wait_readable_or_interrupted(int socket, std::uint64_t deadline_ns, int interrupt);

}  // namespace ciranda
