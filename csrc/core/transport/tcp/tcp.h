#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/fd.h"
#include "core/base/result.h"

// TCP sockets as this project wants them: non-blocking, close-on-exec, without Nagle's delay, bound
// to one address of one interface. Thread-safe: there is no state but the sockets'.
namespace ciranda {

// An address as people write it: a name or a number, and a port.
struct Endpoint {
  std::string host;
  std::uint16_t port = 0;
};
// "host:7", "192.0.2.1:7", "[2001:db8::1]:7".
std::string to_string(const Endpoint& endpoint);

// An address as the kernel knows it.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  // In numbers; a zone is kept ("fe80::1%eth0").
  Endpoint endpoint() const;
};

bool is_loopback(const SocketAddress& address);

// Addresses of a name or number, of both families, in the system's order. Blocks as long as the
// system's resolver does; numbers are answered at once. kInvalidArgument names the host.
Result<std::vector<SocketAddress>> resolve(const Endpoint& endpoint);

Result<SocketAddress> local_address(int socket);
Result<SocketAddress> peer_address(int socket);

// Ports to try, one after the other; {0, 0} lets the kernel choose.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

// Listens on `host`, which is one address of this machine, never all of them. An IPv6 socket takes
// IPv6 only: a host with both families listens twice. kInvalidArgument or kSystem name address,
// port and what to do.
Result<Fd> listen_tcp(const std::string& host, PortRange ports = {});

// A listening socket that the starter has opened and handed over: checked and made like ours.
Result<Fd> adopt_listener(Fd socket);

// Sets what a connection between ranks needs: no delay, and a keep-alive that asks the peer's
// kernel once a second, for check_answers().
Status set_connection_options(int socket);

// Has the kernel spread packets over the round trip, if that takes `far_us`; true if so. Most
// congestion controls send a window at a time: where both ends do, the acknowledgements of one wait
// behind the data of the other and arrive in bunches, queues overflow, and then the line is idle
// (BBR always spreads). Near, a timer for each packet would cost more than it gives.
inline constexpr std::uint32_t kFarUs = 2'000;  // longer than within a building
bool pace_when_far(int socket, std::uint32_t far_us = kFarUs);

// kRankLost when the peer's kernel has answered nothing for `limit_ms`. It answers for a peer that
// is stopped or computes, so its host or the way there is down. Nothing is wrong with a connection
// that a side has closed: whoever reads or writes learns of that. Never blocks.
Status check_answers(int socket, std::uint64_t limit_ms);

// Begins to connect to one address; the socket gets writable when there is news. Never blocks.
Result<Fd> begin_connect(const SocketAddress& address);
// False: not yet. Once true, the socket is connected and has its options.
Result<bool> finish_connect(int socket, const SocketAddress& address);

// Connects to one address; kTimeout at the deadline (monotonic_ns). Blocks.
Result<Fd> connect_tcp(const SocketAddress& address, std::uint64_t deadline_ns);

// Closes at once and with a reset, so that nothing of a stranger lingers in the kernel.
void turn_away(Fd socket);

// Reads what is there, at most `into`. kRankLost when the peer has closed or reset.
Result<std::size_t> receive_some(int socket, std::span<std::byte> into);
Result<std::size_t> receive_some(int socket, std::span<const iovec> into);

// Sends what the socket takes now. kRankLost when the peer is gone.
Result<std::size_t> send_some(int socket, std::span<const std::byte> bytes);
Result<std::size_t> send_some(int socket, std::span<const iovec> pieces);

}  // namespace ciranda
