#pragma once

#include <string>
#include <vector>

#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/transport/tcp/tcp.h"
#include "core/wire/introduction.h"

namespace ciranda {

// Where other hosts call this rank.
struct Listeners {
  std::vector<Fd> sockets = {};
  std::vector<Introduction::Address> addresses = {};  // to be told to others, the best first
};

// Of rank 0: `inherited`, which the starter has opened, or where everybody expects it. An Error
// says how to meet elsewhere.
Result<Listeners> listen_at_rendezvous(const Endpoint& rendezvous, Fd inherited,
                                       const std::string& nic);

// Of any other rank: at `addresses`, or this machine's own that `nic` allows (choose_addresses), as
// far as one can listen there; kAddressesMax at most.
Result<Listeners> listen_at_addresses(std::vector<std::string> addresses, const std::string& nic,
                                      PortRange ports);

}  // namespace ciranda
