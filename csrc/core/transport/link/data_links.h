#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "core/transport/dial/connection_thread.h"
#include "core/transport/tcp/connection.h"
#include "core/transport/tcp/socket_io.h"
#include "core/transport/tcp/stream.h"
#include "core/wire/sealed.h"

namespace ciranda {

// A proven connection for data: sealed headers, each followed by the bytes it announces.
struct DataLink {
  explicit DataLink(ProvenSocket socket)
      : stream(std::move(socket.stream)),
        peer(socket.session.peer),
        address(std::move(socket.address)),
        sealer(std::move(socket.session.send_key)),
        opener(std::move(socket.session.receive_key)) {}

  Stream stream;
  Rank peer;
  std::string address;
  DataSealer sealer;
  DataOpener opener;
};

// The data links of a rank. Each one is made when it is first needed, and then kept. The higher of
// two ranks dials, so that the two never dial each other.
//
// Never blocks, except in close_all() and the destructor. Not thread-safe: the driving thread owns
// it.
class DataLinks {
 public:
  struct Directory {
    Hello self;  // of this rank's calls; find() sets `to` and `stream`
    std::vector<std::vector<Endpoint>> ranks;  // addresses of each rank
    int streams = 1;                           // links of each pair of ranks
    std::uint64_t timeout_ms = 30'000;         // of a call
  };
  DataLinks() = default;  // for a rank that needs no links
  DataLinks(Directory directory, std::unique_ptr<ConnectionThread> connection_thread);

  // Returns the link to `peer`, or null until it is made. The first call orders it. The address of
  // a link never changes. Asserts that `peer` is another rank and `stream` is below
  // Directory::streams.
  DataLink* find(Rank peer, int stream);

  // Calls fn(const DataLink&) for each link that is made.
  template <typename Fn>
  void each(Fn fn) const {
    for (const Slot& slot : slots_) {
      if (slot.link) fn(*slot.link);
    }
  }

  // Takes the new connections of the connection thread; returns true if there were any. An Error
  // names the rank that could not be reached.
  Result<bool> advance();
  // Returns the ranks that were called for a link and whose call has become
  // Dialer::is_unanswered() since this was called last.
  std::vector<Rank> unanswered();
  // Appends the events that advance() waits for.
  void watched(std::vector<Watched>& out) const;

  // Closes all links and joins the connection thread. No link can be made afterwards.
  void close_all();
  // Does the same in a forked child, which has no connection thread. Async-signal-safe.
  void close_in_forked_child() noexcept;

 private:
  struct Slot {
    std::unique_ptr<DataLink> link;
    bool wanted = false;
  };
  Slot* slot(Rank peer, int stream);

  Directory directory_;
  std::unique_ptr<ConnectionThread> connection_thread_;
  std::vector<Slot> slots_;  // by rank and stream; never resized: a forked child reads it
  int missing_ = 0;          // links that are wanted and not made
};

}  // namespace ciranda
