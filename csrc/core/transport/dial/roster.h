#pragma once

#include <map>
#include <string>
#include <tuple>

#include "core/base/result.h"
#include "core/wire/handshake.h"

namespace ciranda {

// The clients that are connected to this rank in one epoch: one for each peer, purpose and stream.
// It has no sockets. Not thread-safe: its acceptor's thread owns it.
class Roster {
 public:
  enum class Admission { kFirst, kReplacesEarlier };

  // Enters a proven client; `from` is its address ("192.0.2.3:4711"). A newer incarnation replaces
  // an older one. Returns kInvalidArgument, which names both addresses, if the same incarnation
  // comes twice or an older one comes after a newer one.
  Result<Admission> admit(const Hello& client, const std::string& from);

  // Removes a client whose connection is closed, so that it may come again.
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
