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

// One packet of a SOCK_SEQPACKET socket, with descriptors (SCM_RIGHTS).
inline constexpr std::size_t kDescriptorsPerPacketMax = 64;

Status send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> fds);

enum class Received { kPacket, kNothing, kClosed };
// Reads into `buffer` and sets `bytes`; descriptors are close-on-exec. A packet that does not fit
// is kMalformed.
struct Packet {
  Received what = Received::kNothing;
  std::size_t bytes = 0;
  std::vector<Fd> fds;
};
Result<Packet> receive_packet(int socket, std::span<std::byte> buffer);

// Two connected ends, non-blocking.
Result<std::array<Fd, 2>> make_packet_sockets();

// A socket of which news is waited for.
struct Watched {
  int socket = -1;  // none: only the time counts
  bool readable = false;
  bool writable = false;
  bool operator==(const Watched&) const = default;
};
pollfd poll_for(const Watched& watched);
// How long poll() and epoll_wait() sleep until the deadline (monotonic_ns): rounded up, so that it
// is over then; -1 where it is kNever.
int poll_timeout_ms(std::uint64_t deadline_ns);

// Waits for any of it; false at the deadline (monotonic_ns).
Result<bool> wait_for(const Watched& watched, std::uint64_t deadline_ns);

// Waits until `socket` is readable, or takes bytes; false at the deadline (monotonic_ns).
Result<bool> wait_readable(int socket, std::uint64_t deadline_ns);
Result<bool> wait_writable(int socket, std::uint64_t deadline_ns);

}  // namespace ciranda
