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
// to one address of one interface. Thread-safe: the sockets hold the only state.
namespace ciranda {

// An address as people write it: a name or a number, and a port.
struct Endpoint {
  std::string host;
  std::uint16_t port = 0;
};
// Returns "host:7", "192.0.2.1:7" or "[2001:db8::1]:7".
std::string to_string(const Endpoint& endpoint);

// An address as the kernel knows it.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  // Returns the numeric address and port; a zone is kept ("fe80::1%eth0").
  Endpoint endpoint() const;
};

bool is_loopback(const SocketAddress& address);

// Returns the addresses of a name or number, of both families, in the system's order. Blocks while
// the system's resolver works; a number resolves immediately. Returns kInvalidArgument, which names
// the host, if it cannot be resolved.
Result<std::vector<SocketAddress>> resolve(const Endpoint& endpoint);

Result<SocketAddress> local_address(int socket);
Result<SocketAddress> peer_address(int socket);

// Ports to try, one after the other; {0, 0} lets the kernel choose.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

// Listens on `host`, which must be one address of this machine and not the wildcard. An IPv6 socket
// takes IPv6 only, so a host with both families listens twice. Errors are kInvalidArgument or
// kSystem; they name the address, the port and a remedy.
Result<Fd> listen_tcp(const std::string& host, PortRange ports = {});

// Checks a listening socket that the starter has opened and handed over, and makes it non-blocking
// and close-on-exec.
Result<Fd> adopt_listener(Fd socket);

// Sets the options of a connection between ranks: TCP_NODELAY, and a keep-alive that probes the
// peer's kernel once a second, for check_answers().
Status set_connection_options(int socket);

inline constexpr std::uint32_t kFarUs = 2'000;  // longer than within a building
// Makes the kernel spread the packets of this socket over the round trip if the round trip takes
// `far_us` or longer. Returns true if it now does so. Most congestion controls send a whole window
// at a time (BBR always spreads). When both ends do that, the acknowledgements of one end wait
// behind the data of the other and arrive in bunches; queues overflow, and then the line is idle.
// On a short round trip a timer for each packet costs more than it gains.
bool pace_when_far(int socket, std::uint32_t far_us = kFarUs);

// Returns kRankLost if the peer's kernel has answered nothing for `limit_ms`. A kernel also answers
// for a process that is stopped or busy, so the peer's host or the network is down. A connection
// that either side has closed is no error here: the next read or write reports it. Called several
// times a second, it has a peer asked more often that has not answered for a while, since packets
// are lost on bad lines. Never blocks.
Status check_answers(int socket, std::uint64_t limit_ms);

// Begins to connect to one address. The socket becomes writable when the attempt has succeeded or
// failed. Never blocks.
Result<Fd> begin_connect(const SocketAddress& address);
// Returns true if the socket is connected, and sets its options; false if the attempt is still in
// progress. Never blocks.
Result<bool> finish_connect(int socket, const SocketAddress& address);

// Connects to one address. Blocks; returns kTimeout at the deadline (monotonic_ns).
Result<Fd> connect_tcp(const SocketAddress& address, std::uint64_t deadline_ns);

// Closes the socket with a reset, so that no state of a stranger lingers in the kernel.
void turn_away(Fd socket);

// Receives available bytes, at most as many as `into` holds; 0 if there are none. Returns kRankLost
// if the peer has closed or reset the connection. Never blocks.
Result<std::size_t> receive_some(int socket, std::span<std::byte> into);
Result<std::size_t> receive_some(int socket, std::span<const iovec> into);

// Sends as many bytes as the socket takes now and returns their number. Returns kRankLost if the
// peer is gone. Never blocks.
Result<std::size_t> send_some(int socket, std::span<const std::byte> bytes);
Result<std::size_t> send_some(int socket, std::span<const iovec> pieces);

}  // namespace ciranda
