#pragma once

#include <vector>

#include "core/backend/ring/ring_operation.h"
#include "core/base/result.h"
#include "core/transport/link/data_links.h"
#include "core/transport/tcp/socket_io.h"

namespace ciranda {

// Sends and receives the messages of operations between hosts on the data links, as the steps say
// and as far as the sockets allow. Never blocks. An Error names the peer, and nothing can be
// exchanged after it.
class RingExchange {
 public:
  // `links` outlive this object. `authenticates`: messages authenticate their payload, not only
  // their headers.
  RingExchange(DataLinks& links, bool authenticates)
      : links_(links), authenticates_(authenticates) {}

  // Requests all links that the operation needs, so that they are made at the same time.
  void call_peers(const RingOperation& op);
  // Returns true if anything moved.
  Result<bool> advance(RingOperation& op, RingChannel& channel);
  // Appends the sockets that the operation waits for.
  void watched(const RingOperation& op, std::vector<Watched>& out) const;

 private:
  Result<bool> send(RingOperation& op, RingChannel& channel);
  Result<bool> receive(RingOperation& op, RingChannel& channel);
  // Returns true if anything moved. Sets `complete` if the whole message has arrived.
  Result<bool> read_message(RingOperation& op, RingChannel& channel, const Receive& receive,
                            bool& complete);
  // Returns null while the link is being made.
  DataLink* link(const RingOperation& op, const RingChannel& channel, int participant) const;

  DataLinks& links_;
  const bool authenticates_;
};

}  // namespace ciranda
