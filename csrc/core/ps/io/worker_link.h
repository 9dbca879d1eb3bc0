#pragma once

#include <memory>
#include <optional>

#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/ps/decide/messages.h"
#include "core/ps/decide/server_protocol.h"
#include "core/transport/tcp/connection.h"
#include "core/transport/tcp/socket_io.h"

namespace ciranda::ps {

// A server's end of its connection to a worker, and the worker's memory as the server sees it. On
// one host that is the worker's own memory, mapped; between hosts it is a copy of this server's
// share.
//
// Never blocks. Not thread-safe.
class WorkerLink {
 public:
  virtual ~WorkerLink() = default;

  // Returns what receive() and flush() wait for.
  virtual Watched watched() const = 0;
  // Returns true if the worker is on another host. The link may then have received messages
  // although its socket is not readable.
  virtual bool is_remote() const = 0;
  // Returns the next message, with all its data, or nothing yet. kRankLost if the worker is gone;
  // any other error means that the message is invalid.
  virtual Result<std::optional<Message>> receive() = 0;
  // Returns what came with that message; valid until the next receive().
  virtual ServerProtocol::Attached attached() = 0;
  // Sends the message and, between hosts, the data that it says is in the worker's memory. An error
  // means that the worker is gone or reads nothing.
  virtual Status send(const Message& message) = 0;
  // Sends queued bytes as far as the socket takes them.
  virtual Status flush() = 0;
  // Tells the worker that nothing follows the messages sent so far. The worker hangs up once it has
  // read them.
  virtual void end() = 0;
};

// Makes a link to a worker on this host, over packets with descriptors of the worker's memory.
std::unique_ptr<WorkerLink> make_local_link(Fd socket);

// Makes the link of server `server` of `servers` to a worker on another host. `authenticates`: see
// MessageLink.
std::unique_ptr<WorkerLink> make_remote_link(ProvenSocket socket, int server, int servers,
                                             bool authenticates);

}  // namespace ciranda::ps
