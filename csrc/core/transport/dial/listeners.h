#pragma once

#include <string>
#include <vector>

#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/transport/tcp/tcp.h"
#include "core/wire/introduction.h"

namespace ciranda {

// The sockets at which other hosts call this rank.
struct Listeners {
  std::vector<Fd> sockets = {};
  std::vector<Introduction::Address> addresses = {};  // for the other ranks, the best first
};

// Listens as rank 0, on the socket `inherited`, which the starter has opened, or else at the
// rendezvous. If the name of the rendezvous is a loopback address on this host, it also listens at
// an address that `nic` allows. If it cannot listen, the Error says how to choose another
// rendezvous.
Result<Listeners> listen_at_rendezvous(const Endpoint& rendezvous, Fd inherited,
                                       const std::string& nic);

// Listens as any other rank, at `addresses` or else at this machine's addresses that `nic` allows
// (choose_addresses), at most kAddressesMax. Skips an address at which it cannot listen; returns
// the last error if there is no other.
Result<Listeners> listen_at_addresses(std::vector<std::string> addresses, const std::string& nic,
                                      PortRange ports);

}  // namespace ciranda
