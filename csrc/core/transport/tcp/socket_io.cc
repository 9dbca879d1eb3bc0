#include "core/transport/tcp/socket_io.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "core/base/assert.h"
#include "core/base/clock.h"

namespace ciranda {

int poll_timeout_ms(std::uint64_t deadline_ns) {
  if (deadline_ns == kNever) return -1;
  const std::uint64_t now = monotonic_ns();
  if (now >= deadline_ns) return 0;
  const std::uint64_t left_ms = (deadline_ns - now - 1) / 1'000'000 + 1;
  return static_cast<int>(std::min<std::uint64_t>(left_ms, INT_MAX));
}

pollfd poll_for(const Watched& watched) {
  const int events = (watched.readable ? POLLIN : 0) | (watched.writable ? POLLOUT : 0);
  return {.fd = watched.socket, .events = static_cast<short>(events), .revents = 0};
}

Result<bool> wait_for(const Watched& watched, std::uint64_t deadline_ns) {
  for (;;) {
    pollfd wanted = poll_for(watched);
    const int ready = ::poll(&wanted, 1, poll_timeout_ms(deadline_ns));
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) return Error::from_errno("poll", errno);
  }
}

Result<std::array<Fd, 2>> make_packet_sockets() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return Error::from_errno("socketpair", errno);
  }
  return std::array<Fd, 2>{Fd(ends[0]), Fd(ends[1])};
}

Status send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> fds) {
  CIRANDA_ASSERT(fds.size() <= kDescriptorsPerPacketMax);
  CIRANDA_ASSERT(!bytes.empty());  // to the receiver an empty packet is the end of the socket
  iovec piece{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int) * kDescriptorsPerPacketMax)] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = ancillary;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  for (;;) {
    if (::sendmsg(socket, &message, MSG_NOSIGNAL) >= 0) return {};
    if (errno == EINTR) continue;
    if (errno == EAGAIN) {  // the peer's queue is full: wait for it to read
      pollfd writable{.fd = socket, .events = POLLOUT, .revents = 0};
      ::poll(&writable, 1, -1);
      continue;
    }
    if (errno == ETOOMANYREFS) {  // this user has too many descriptors in flight
      ::poll(nullptr, 0, 1);
      continue;
    }
    return Error::from_errno("cannot send to a local rank", errno);
  }
}

Result<Packet> receive_packet(int socket, std::span<std::byte> buffer) {
  CIRANDA_ASSERT(!buffer.empty());
  iovec piece{.iov_base = buffer.data(), .iov_len = buffer.size()};
  alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int) * kDescriptorsPerPacketMax)] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = ancillary;
  message.msg_controllen = sizeof ancillary;
  ssize_t count = 0;
  do {
    count = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);

  Packet packet;
  if (count < 0) {
    if (errno == EAGAIN) return packet;
    if (errno == ECONNRESET) {
      packet.what = Received::kClosed;
      return packet;
    }
    return Error::from_errno("cannot receive from a local rank", errno);
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t fds = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < fds; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      packet.fds.emplace_back(fd);
    }
  }
  if (count == 0) {
    packet.what = Received::kClosed;
    return packet;
  }
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return Error{.code = ErrorCode::kMalformed, .text = "a local rank sent an oversized packet"};
  }
  packet.what = Received::kPacket;
  packet.bytes = static_cast<std::size_t>(count);
  return packet;
}

Result<bool> wait_readable(int socket, std::uint64_t deadline_ns) {
  return wait_for({.socket = socket, .readable = true}, deadline_ns);
}

Result<bool> wait_writable(int socket, std::uint64_t deadline_ns) {
  return wait_for({.socket = socket, .writable = true}, deadline_ns);
}

Result<bool> wait_readable_or_interrupted(int socket, std::uint64_t deadline_ns, int interrupt) {
  for (;;) {
    pollfd both[] = {{.fd = socket, .events = POLLIN, .revents = 0},
                     {.fd = interrupt, .events = POLLIN, .revents = 0}};
    const int count = ::poll(both, 2, poll_timeout_ms(deadline_ns));
    if (count < 0 && errno != EINTR) return Error::from_errno("poll", errno);
    if (count > 0 && both[1].revents != 0) {
      return Error{.code = ErrorCode::kShutdown, .text = "the wait was interrupted"};
    }
    if (count > 0) return true;
    if (monotonic_ns() >= deadline_ns) return false;
  }
}

}  // namespace ciranda
