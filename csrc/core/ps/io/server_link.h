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

// Memory that a worker shares with servers on its host, and the descriptor by which they map it.
struct SharedMemory {
  static Result<SharedMemory> create(std::size_t bytes);
  MemorySegment segment = {};
  Fd fd = {};
};

// The memory that a worker's messages refer to.
struct WorkerMemory {
  std::optional<Layout> layout = {};  // none before declare()
  SharedMemory model_blob = {};       // for Declare: the encoded model
  std::size_t model_blob_bytes = 0;
  SharedMemory memory = {};     // see Layout
  SharedMemory gradients = {};  // the gradients, once moved; else they lie in `memory`
  SharedMemory fetched = {};    // for FetchState and FetchSteps
  std::optional<std::size_t> fetched_table = {};  // none: steps
  std::size_t fetched_bytes = 0;
  // For PullRows and PushRows, by server: the numbers of rows, then the rows or their gradients.
  // The memory may be larger than that: later messages reuse it, since pages that were touched once
  // cost nothing more.
  struct Rows {
    SharedMemory memory = {};
    std::size_t numbers_bytes = 0;
    std::size_t rows_bytes = 0;
  };
  std::vector<Rows> rows = {};
  // Returns the segment in which the gradients lie.
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

  // Returns what receive() and flush() wait for.
  virtual Watched watched() const = 0;
  // Returns true if the server is on another host. Its answers then take time, and may arrive while
  // the worker waits for another server.
  virtual bool is_remote() const = 0;
  // Sends the message with the memory that it refers to: to a server on this host as descriptors,
  // else as bytes, which must not change until they have been sent. kRankLost if the server is
  // gone. Blocks only while a server on this host reads nothing.
  virtual Status send(const Message& message) = 0;
  // Sends queued bytes as far as the socket takes them.
  virtual Status flush() = 0;
  virtual bool has_queued() const = 0;
  // Returns the next message, or nothing yet. The memory then has the data of the message. Never
  // blocks.
  virtual Result<std::optional<Message>> receive() = 0;
  // kRankLost if the server's host has not responded for `limit_ms`.
  virtual Status check_answers(std::uint64_t limit_ms) const = 0;
  // Tells the server that nothing more will be sent. It hangs up once it has read everything.
  virtual void end() noexcept = 0;
  // Closes the socket. Async-signal-safe, so that a forked child may call it.
  virtual void close() noexcept = 0;
};

// Makes a link to a server on this host, connected by `socket`. `memory` must outlive the link.
std::unique_ptr<ServerLink> make_link_here(Fd socket, int server, const WorkerMemory& memory);
// Makes a link to a server on another host. `memory` must outlive the link. `authenticates`: see
// MessageLink.
std::unique_ptr<ServerLink> make_link_elsewhere(ProvenSocket socket, int server, bool authenticates,
                                                const WorkerMemory& memory);

}  // namespace ciranda::ps
