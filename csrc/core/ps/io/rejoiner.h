#pragma once

#include <cstdint>
#include <optional>

#include "core/base/result.h"
#include "core/ps/decide/messages.h"
#include "core/ps/io/client_options.h"
#include "core/ps/io/progress.h"
#include "core/ps/io/server_link.h"
#include "core/ps/io/server_links.h"

namespace ciranda::ps {

// The question that a client has asked a server.
struct Asked {
  std::optional<Message> question = {};  // not answered yet
  bool keeps_state = false;              // see Welcome

  bool enters() const;
  // Returns what the server was asked to do, for notices of long waits; null if the answer may take
  // any time.
  const char* to_do_what() const;
};

// Reconnects to a server that was lost, or to one that replaces it, and sends the unanswered
// question again. The server knows which pushes it has decided.
//
// Not thread-safe.
class Rejoiner {
 public:
  // All arguments must outlive this object.
  Rejoiner(const ClientOptions& options, const WorkerMemory& memory, const Progress& progress,
           ServerLinks& links);

  // Returns the first message of a connection.
  Enter entry(int server) const;
  // Replaces the link to the server that `lost` names. `asked`: of that server. Blocks, for about
  // the reconnect timeout at most. Returns the error for which the client has to give up: `lost`
  // itself if a reconnect is useless.
  Status rejoin(const Error& lost, const Asked& asked);

 private:
  Status call_again(int server, const Asked& asked, std::uint64_t deadline_ns);
  std::uint64_t patience_ms(const Asked& asked) const;
  bool may_come_back(const Error& error, const Asked& asked) const;

  const ClientOptions& options_;
  const std::uint64_t process_;  // random; see Enter
  const WorkerMemory& memory_;
  const Progress& progress_;
  ServerLinks& links_;
};

}  // namespace ciranda::ps
