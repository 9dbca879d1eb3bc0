#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/ps/decide/layout.h"
#include "core/ps/decide/messages.h"
#include "core/transport/local/memory_segment.h"
#include "core/transport/tcp/connection.h"
#include "core/transport/tcp/socket_io.h"

namespace ciranda::ps {

// Memory that a worker shares with servers on its host, and the descriptor that they map it by.
struct SharedMemory {
  static Result<SharedMemory> create(std::size_t bytes);
  MemorySegment segment = {};
  Fd fd = {};
};

// What a worker's messages speak of.
struct WorkerMemory {
  std::optional<Layout> layout = {};  // once its model is known
  SharedMemory model_blob = {};       // the model, encoded: of Declare
  std::size_t model_blob_bytes = 0;
  SharedMemory memory = {};     // see Layout
  SharedMemory gradients = {};  // where they have moved to; none while they have not
  SharedMemory fetched = {};    // of FetchState and FetchSteps
  std::optional<std::size_t> fetched_table = {};  // none: steps
  std::size_t fetched_bytes = 0;
  // Of PullRows and PushRows, by server: the numbers of rows, and behind them the rows or their
  // gradients. The memory may be larger: it serves the next message too, since a page that was
  // touched once costs nothing.
  struct Rows {
    SharedMemory memory = {};
    std::size_t numbers_bytes = 0;
    std::size_t rows_bytes = 0;
  };
  std::vector<Rows> rows = {};
  // Where they lie.
  const MemorySegment& gradient_segment() const {
    return gradients.segment.data() != nullptr ? gradients.segment : memory.segment;
  }
};

// A worker's end of its connection to a server.
//
// Not thread-safe.
class ServerLink {
 public:
  virtual ~ServerLink() = default;

  // What receive() and flush() wait for.
  virtual Watched watched() const = 0;
  // Whether the server is on another host. Answers then take time, and may arrive before they are
  // asked for.
  virtual bool is_remote() const = 0;
  // What the message speaks of goes with it: as descriptors, or as bytes, which must not change
  // until they have been sent. kRankLost: the server is gone.
  virtual Status send(const Message& message) = 0;
  virtual Status flush() = 0;
  virtual bool has_queued() const = 0;
  // The next message; nothing yet. What the server has written is in the memory by then. Never
  // blocks.
  virtual Result<std::optional<Message>> receive() = 0;
  // kRankLost when the server's host has answered nothing for so long.
  virtual Status check_answers(std::uint64_t limit_ms) const = 0;
  // The server learns that nothing more comes; it hangs up once it has read all.
  virtual void end() noexcept = 0;
  // In a forked child. Async-signal-safe.
  virtual void close() noexcept = 0;
};

// `memory` must outlive the link. On the server's host, by its socket.
std::unique_ptr<ServerLink> make_link_here(Fd socket, int server, const WorkerMemory& memory);
// To another host. `authenticates`: see MessageLink.
std::unique_ptr<ServerLink> make_link_elsewhere(ProvenSocket socket, int server, bool authenticates,
                                                const WorkerMemory& memory);

}  // namespace ciranda::ps
