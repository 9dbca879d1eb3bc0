#include "core/transport/tcp/tcp.h"

#include <fcntl.h>
#include <linux/tcp.h>  // glibc's has no tcpi_min_rtt
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/base/assert.h"
#include "core/transport/tcp/socket_io.h"
#include "core/transport/tcp/users.h"

namespace ciranda {
namespace {

// Length of the accept queue, limited by the system (net.core.somaxconn). All hosts of a job may
// call rank 0 at once. The kernel drops further callers, and they try again.
constexpr int kBacklog = 1024;
constexpr int kEstablished = 1;  // the kernel's TCP_ESTABLISHED; only glibc's header names it

Error invalid(std::string text) {
  return {.code = ErrorCode::kInvalidArgument, .text = std::move(text)};
}

void set_port(SocketAddress& address, std::uint16_t port) {
  if (address.family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = htons(port);
  }
}

bool is_wildcard(const SocketAddress& address) {
  if (address.family() == AF_INET6) {
    const auto* in6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    return IN6_IS_ADDR_UNSPECIFIED(&in6->sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr) && in6->sin6_addr.s6_addr32[3] == 0);
  }
  return reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr.s_addr == 0;
}

Status set_option(int socket, int level, int option, int value, const char* name) {
  if (::setsockopt(socket, level, option, &value, sizeof value) == 0) return {};
  return Error::from_errno(std::string("cannot set ") + name, errno);
}

Result<Fd> make_socket(int family) {
  Fd socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!socket.valid() && errno == EMFILE) {
    return Error::from_errno("cannot make a TCP socket; raise the limit of files (ulimit -n)",
                             errno);
  }
  if (!socket.valid()) return Error::from_errno("cannot make a TCP socket", errno);
  return socket;
}

// Binds the first free port of the range. bind() itself tests whether a port is free, so no other
// process can take it in between.
Status bind_one_of(int socket, SocketAddress address, const std::string& host, PortRange ports) {
  CIRANDA_ASSERT(ports.first <= ports.last);  // by listen_tcp()
  for (std::uint32_t port = ports.first; port <= ports.last; ++port) {
    set_port(address, static_cast<std::uint16_t>(port));
    if (::bind(socket, address.get(), address.length) == 0) return {};
    if (errno == EADDRINUSE) continue;
    return Error::from_errno(
        "cannot listen on " +
            to_string(Endpoint{.host = host, .port = static_cast<std::uint16_t>(port)}) +
            ", which must be an address of this machine",
        errno);
  }
  if (ports.first == ports.last) {
    const auto user = who_listens_on(ports.first);
    return Error::from_errno(
        "cannot listen on " + to_string(Endpoint{.host = host, .port = ports.first}) +
            ", which another program" + (user ? " of " + name_of_user(*user) : "") + " uses",
        EADDRINUSE);
  }
  return Error::from_errno("every port from " + std::to_string(ports.first) + " to " +
                               std::to_string(ports.last) + " of " + host +
                               " is taken; give a wider range, or no range",
                           EADDRINUSE);
}

Error peer_gone(int reason) {
  Error error = Error::from_errno("the connection broke", reason);
  error.code = ErrorCode::kRankLost;
  return error;
}

Error cannot_connect(const SocketAddress& address, int reason) {
  return Error::from_errno("cannot connect to " + to_string(address.endpoint()), reason);
}

bool is_transient(int reason) {
  return reason == EAGAIN || reason == EWOULDBLOCK;
}

// The kernel reads the pieces and never writes them.
msghdr message_of(std::span<const iovec> pieces) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  return message;
}

std::size_t bytes_of(std::span<const iovec> pieces) {
  std::size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes;
}

}  // namespace

std::string to_string(const Endpoint& endpoint) {
  const bool is_ipv6 = endpoint.host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + endpoint.host + "]" : endpoint.host) + ":" +
         std::to_string(endpoint.port);
}

Endpoint SocketAddress::endpoint() const {
  char host[NI_MAXHOST] = "?";
  char port[NI_MAXSERV] = "0";
  (void)::getnameinfo(get(), length, host, sizeof host, port, sizeof port,
                      NI_NUMERICHOST | NI_NUMERICSERV);
  return {.host = host, .port = static_cast<std::uint16_t>(std::strtoul(port, nullptr, 10))};
}

bool is_loopback(const SocketAddress& address) {
  if (address.family() == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(
        &reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr);
  }
  const auto* in = reinterpret_cast<const sockaddr_in*>(&address.storage);
  return ntohl(in->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

Result<std::vector<SocketAddress>> resolve(const Endpoint& endpoint) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int status =
      ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  if (status != 0) {
    return invalid("cannot find the host '" + endpoint.host + "': " + ::gai_strerror(status) +
                   "; check its name, or give its address");
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    CIRANDA_ASSERT(each->ai_addrlen <= sizeof address.storage);
    std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
    address.length = each->ai_addrlen;
  }
  return addresses;
}

Result<SocketAddress> local_address(int socket) {
  SocketAddress address{.length = sizeof(sockaddr_storage)};
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.length) == 0) {
    return address;
  }
  return Error::from_errno("getsockname", errno);
}

Result<SocketAddress> peer_address(int socket) {
  SocketAddress address{.length = sizeof(sockaddr_storage)};
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.length) == 0) {
    return address;
  }
  return Error::from_errno("getpeername", errno);
}

Result<Fd> listen_tcp(const std::string& host, PortRange ports) {
  if (ports.first > ports.last || (ports.first == 0 && ports.last != 0)) {
    return invalid("the ports " + std::to_string(ports.first) + " to " +
                   std::to_string(ports.last) + " are not a range; write the lower port first");
  }
  auto addresses = resolve({.host = host, .port = 0});
  if (!addresses) return addresses.error();
  const SocketAddress& address = addresses.value().front();
  if (is_wildcard(address)) {
    return invalid(
        "'" + host +
        "' means every network of this machine; give the one address at which the ranks meet");
  }
  auto socket = make_socket(address.family());
  if (!socket) return socket.error();
  const int fd = socket.value().get();
  // SO_REUSEADDR lets a restarted job take the port of one that just ended.
  CIRANDA_TRY(set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR"));
  if (address.family() == AF_INET6) {
    CIRANDA_TRY(set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1, "IPV6_V6ONLY"));
  }
  CIRANDA_TRY(bind_one_of(fd, address, host, ports));
  if (::listen(fd, kBacklog) != 0) return Error::from_errno("listen", errno);
  return socket;
}

Result<Fd> adopt_listener(Fd socket) {
  const std::string name = "the inherited descriptor " + std::to_string(socket.get());
  int listens = 0;
  socklen_t length = sizeof listens;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 ||
      listens == 0) {
    return invalid(name + " is not a listening socket");
  }
  auto address = local_address(socket.get());
  if (!address) return address.error();
  if (address.value().family() != AF_INET && address.value().family() != AF_INET6) {
    return invalid(name + " listens, but not for TCP");
  }
  if (is_wildcard(address.value())) {
    return invalid(name + " listens on every network of this machine; bind it to one address");
  }
  if (::fcntl(socket.get(), F_SETFD, FD_CLOEXEC) != 0 ||
      ::fcntl(socket.get(), F_SETFL, O_NONBLOCK) != 0) {
    return Error::from_errno("cannot make " + name + " non-blocking", errno);
  }
  return socket;
}

namespace {

constexpr int kAskSeconds = 1;
constexpr std::uint64_t kAskAgainMs = 1'200;  // a first answer would have come by then

}  // namespace

// No TCP_USER_TIMEOUT: it also cuts off a peer whose kernel answers but which reads nothing.
Status set_connection_options(int socket) {
  constexpr int kAsksMax = 127;  // the kernel's maximum: the engine decides when a peer is lost
  CIRANDA_TRY(set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"));
  CIRANDA_TRY(set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"));
  CIRANDA_TRY(set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, kAskSeconds, "TCP_KEEPIDLE"));
  CIRANDA_TRY(set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, kAskSeconds, "TCP_KEEPINTVL"));
  return set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, kAsksMax, "TCP_KEEPCNT");
}

bool pace_when_far(int socket, std::uint32_t far_us) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  if (info.tcpi_min_rtt < far_us) return false;  // tcpi_rtt includes waits for a busy peer
  // A limit other than "none" makes the kernel pace; the kernel chooses the rate.
  constexpr std::uint64_t kBytesPerSecondMax = UINT64_MAX - 1;
  return ::setsockopt(socket, SOL_SOCKET, SO_MAX_PACING_RATE, &kBytesPerSecondMax,
                      sizeof kBytesPerSecondMax) == 0;
}

Status check_answers(int socket, std::uint64_t limit_ms) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) {
    return Error::from_errno("getsockopt", errno);
  }
  if (info.tcpi_state != kEstablished) return {};
  // While the peer reads nothing, the kernel probes its window more and more rarely, and the peer
  // may leave one probe unanswered.
  const bool waits_for_room = info.tcpi_unacked == 0 && info.tcpi_backoff > 0;
  if (waits_for_room && info.tcpi_probes < 2) return {};
  const std::uint64_t silent_ms = std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv);
  if (silent_ms < limit_ms) {
    // A lost probe is no lost host: to set the time anew makes the kernel ask at once.
    if (silent_ms >= kAskAgainMs) {
      CIRANDA_TRY(set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, kAskSeconds, "TCP_KEEPIDLE"));
    }
    return {};
  }
  return Error{.code = ErrorCode::kRankLost,
               .text = "its host has not answered for " + std::to_string(silent_ms) +
                       " ms, so the host or the network is down"};
}

Result<Fd> begin_connect(const SocketAddress& address) {
  CIRANDA_ASSERT(address.length > 0 && address.length <= sizeof address.storage);  // by resolve()
  auto socket = make_socket(address.family());
  if (!socket) return socket.error();
  if (::connect(socket.value().get(), address.get(), address.length) != 0 && errno != EINPROGRESS &&
      errno != EINTR) {
    return cannot_connect(address, errno);
  }
  return socket;
}

Result<bool> finish_connect(int socket, const SocketAddress& address) {
  auto settled = wait_writable(socket, 0);
  if (!settled) return settled.error();
  if (!settled.value()) return false;
  int reason = 0;
  socklen_t length = sizeof reason;
  if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &reason, &length) != 0) reason = errno;
  if (reason != 0) return cannot_connect(address, reason);
  CIRANDA_TRY(set_connection_options(socket));
  return true;
}

Result<Fd> connect_tcp(const SocketAddress& address, std::uint64_t deadline_ns) {
  auto socket = begin_connect(address);
  if (!socket) return socket.error();
  const int fd = socket.value().get();
  auto writable = wait_writable(fd, deadline_ns);
  if (!writable) return writable.error();
  auto connected = finish_connect(fd, address);
  if (!connected) return connected.error();
  if (connected.value()) return socket;
  return Error{.code = ErrorCode::kTimeout,
               .text = "nobody answered at " + to_string(address.endpoint()) + " in time"};
}

void turn_away(Fd socket) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

Result<std::size_t> receive_some(int socket, std::span<std::byte> into) {
  const iovec whole{.iov_base = into.data(), .iov_len = into.size()};
  return receive_some(socket, std::span(&whole, 1));
}

Result<std::size_t> receive_some(int socket, std::span<const iovec> into) {
  if (bytes_of(into) == 0) return std::size_t{0};
  msghdr message = message_of(into);
  ssize_t count = 0;
  do {
    count = ::recvmsg(socket, &message, MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);
  if (count > 0) return static_cast<std::size_t>(count);
  if (count < 0) return is_transient(errno) ? Result<std::size_t>(0) : peer_gone(errno);
  return Error{.code = ErrorCode::kRankLost, .text = "the peer closed the connection"};
}

Result<std::size_t> send_some(int socket, std::span<const std::byte> bytes) {
  const iovec whole{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  return send_some(socket, std::span(&whole, 1));
}

Result<std::size_t> send_some(int socket, std::span<const iovec> pieces) {
  if (bytes_of(pieces) == 0) return std::size_t{0};
  const msghdr message = message_of(pieces);
  ssize_t count = 0;
  do {
    count = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (count < 0 && errno == EINTR);
  if (count >= 0) return static_cast<std::size_t>(count);
  return is_transient(errno) ? Result<std::size_t>(0) : peer_gone(errno);
}

}  // namespace ciranda
