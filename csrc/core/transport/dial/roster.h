#pragma once

#include <map>
#include <string>
#include <tuple>

#include "core/base/result.h"
#include "core/wire/handshake.h"

namespace ciranda {

// Who is connected to this rank in one epoch: one connection for each peer, purpose and stream. It
// knows no sockets. Not thread-safe: its acceptor's thread owns it.
class Roster {
 public:
  enum class Admission { kFirst, kReplacesEarlier };

  // Enters a client that has proven itself; `from` says where it is ("192.0.2.3:4711"). A newer
  // incarnation replaces an older one. kInvalidArgument names both when the same comes twice or an
  // older one comes after a newer.
  Result<Admission> admit(const Hello& client, const std::string& from);

  // Its connection is closed: it may come again.
  void forget(Rank peer, Purpose purpose, std::uint16_t stream);

 private:
  using Key = std::tuple<Rank, Purpose, std::uint16_t>;
  struct Client {
    Incarnation incarnation = 0;
    std::string from;
  };
  std::map<Key, Client> clients_;  // at most ranks x purposes x streams
};

}  // namespace ciranda
