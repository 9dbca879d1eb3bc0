#include "core/transport/dial/listeners.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/base/assert.h"
#include "core/transport/dial/cookie_filter.h"
#include "core/transport/tcp/interfaces.h"

namespace ciranda {
namespace {

Status advertise(Listeners& listeners) {
  CIRANDA_ASSERT(!listeners.sockets.empty());
  auto address = local_address(listeners.sockets.back().get());
  if (!address) return address.error();
  Endpoint endpoint = address.value().endpoint();
  listeners.addresses.push_back({.host = std::move(endpoint.host), .port = endpoint.port});
  return {};
}

Result<std::vector<std::string>> own_addresses(const std::string& nic) {
  auto all = list_host_addresses();
  if (!all) return all.error();
  auto chosen = choose_addresses(all.value(), nic);
  if (!chosen) return chosen.error();
  std::vector<std::string> addresses;
  for (const HostAddress& address : chosen.value()) addresses.push_back(address.address);
  return addresses;
}

Result<std::vector<std::string>> rendezvous_addresses(const Endpoint& rendezvous,
                                                      const std::string& nic) {
  auto addresses = resolve(rendezvous);
  if (!addresses) return addresses.error();
  const SocketAddress& first = addresses.value().front();
  std::vector<std::string> hosts = {first.endpoint().host};
  if (!is_loopback(first) || hosts.front() == rendezvous.host) return hosts;
  // On Debian a host resolves its own name to a loopback address. The ranks of this host call
  // there; the ranks of other hosts need an address of a real interface.
  auto own = own_addresses(nic);
  if (!own) return own.error();
  hosts.push_back(std::move(own.value().front()));
  return hosts;
}

}  // namespace

Result<Listeners> listen_at_rendezvous(const Endpoint& rendezvous, Fd inherited,
                                       const std::string& nic) {
  Listeners listeners;
  if (inherited.valid()) {
    auto adopted = adopt_listener(std::move(inherited));
    if (!adopted) return adopted.error();
    // In an elastic job another rank may have listened here before, and have left its guard.
    let_all_in(adopted.value().get());
    listeners.sockets.push_back(std::move(adopted).value());
  } else {
    auto hosts = rendezvous_addresses(rendezvous, nic);
    if (!hosts) return hosts.error();
    const std::uint16_t port = rendezvous.port;
    for (const std::string& host : hosts.value()) {
      auto socket = listen_tcp(host, {port, port});
      if (!socket) {
        Error error = socket.error();
        error.text += "; choose another address: set CIRANDA_RENDEZVOUS=host:port for all ranks";
        return error;
      }
      listeners.sockets.push_back(std::move(socket).value());
    }
  }
  CIRANDA_TRY(advertise(listeners));
  return listeners;
}

Result<Listeners> listen_at_addresses(std::vector<std::string> addresses, const std::string& nic,
                                      PortRange ports) {
  if (addresses.empty()) {
    auto own = own_addresses(nic);
    if (!own) return own.error();
    addresses = std::move(own).value();
  }
  addresses.resize(std::min(addresses.size(), kAddressesMax));
  Listeners listeners;
  Error why;
  for (const std::string& address : addresses) {
    auto socket = listen_tcp(address, ports);
    if (!socket) {
      why = socket.error();  // another address may do
      continue;
    }
    listeners.sockets.push_back(std::move(socket).value());
    CIRANDA_TRY(advertise(listeners));
  }
  CIRANDA_ASSERT(listeners.sockets.size() == listeners.addresses.size());
  if (listeners.sockets.empty()) return why;
  return listeners;
}

}  // namespace ciranda
