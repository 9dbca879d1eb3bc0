#pragma once

#include <vector>

#include "core/backend/ring/ring_operation.h"
#include "core/base/result.h"
#include "core/transport/link/data_links.h"
#include "core/transport/tcp/socket_io.h"

namespace ciranda {

// The messages of operations between hosts, on the data links: sends and receives what the steps
// say, as far as the sockets let it. Never blocks. An Error names the peer; nothing can be
// exchanged any more then.
class RingExchange {
 public:
  // `links` outlive it. `authenticates`: the payload too, not only the headers.
  RingExchange(DataLinks& links, bool authenticates)
      : links_(links), authenticates_(authenticates) {}

  // Asks for the links that the operation needs, so that they are made at the same time.
  void call_peers(const RingOperation& op);
  // True when something moved.
  Result<bool> advance(RingOperation& op, RingChannel& channel);
  // Appends what the operation waits for.
  void watched(const RingOperation& op, std::vector<Watched>& out) const;

 private:
  Result<bool> send(RingOperation& op, RingChannel& channel);
  Result<bool> receive(RingOperation& op, RingChannel& channel);
  // True when something moved; `complete` when all of the message is there.
  Result<bool> read_message(RingOperation& op, RingChannel& channel, const Receive& receive,
                            bool& complete);
  // Null while it is in the making.
  DataLink* link(const RingOperation& op, const RingChannel& channel, int participant) const;

  DataLinks& links_;
  const bool authenticates_;
};

}  // namespace ciranda
