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

// A server's end of its connection to a worker, and the worker's memory as the server sees it: the
// worker's own, mapped, on one host; a copy of this server's share between hosts.
//
// Never blocks. Not thread-safe.
class WorkerLink {
 public:
  virtual ~WorkerLink() = default;

  // What receive() and flush() wait for.
  virtual Watched watched() const = 0;
  // Whether the worker is on another host. The link may then hold messages although its socket is
  // not readable.
  virtual bool is_remote() const = 0;
  // The next message, with all that belongs to it; nothing yet. kRankLost: the worker is gone.
  // Any other error: it says what is no message.
  virtual Result<std::optional<Message>> receive() = 0;
  // What has come with that message, until the next receive().
  virtual ServerProtocol::Attached attached() = 0;
  // Where the message says that something was written into the worker's memory, that goes with it.
  // An error: it is gone, or reads nothing.
  virtual Status send(const Message& message) = 0;
  virtual Status flush() = 0;
  // Nothing is sent any more. The worker may not have read what was: it hangs up when it has.
  virtual void end() = 0;
};

// Packets, with descriptors of the worker's memory.
std::unique_ptr<WorkerLink> make_local_link(Fd socket);

// Of server `server` of `servers`. `authenticates`: see MessageLink.
std::unique_ptr<WorkerLink> make_remote_link(ProvenSocket socket, int server, int servers,
                                             bool authenticates);

}  // namespace ciranda::ps
