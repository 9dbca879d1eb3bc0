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

// The data links of a rank: made when they are first needed, and kept. Of two ranks the higher one
// calls, so that they never do it both.
//
// Never blocks. Not thread-safe: whoever drives owns it.
class DataLinks {
 public:
  struct Directory {
    Hello self;                                // of this rank's calls; without receiver and stream
    std::vector<std::vector<Endpoint>> ranks;  // where each one can be called
    int streams = 1;                           // links of a pair
    std::uint64_t timeout_ms = 30'000;         // of a call
  };
  DataLinks() = default;  // of a rank that needs none
  DataLinks(Directory directory, std::unique_ptr<ConnectionThread> connection_thread);

  // Null while the link is in the making, which the first call begins. A link stays where it is.
  DataLink* find(Rank peer, int stream);

  // Calls fn(const DataLink&) for each link that is there.
  template <typename Fn>
  void each(Fn fn) const {
    for (const Slot& slot : slots_) {
      if (slot.link) fn(*slot.link);
    }
  }

  // Takes the links that have come; true if any. An Error says who could not be reached.
  Result<bool> advance();
  // Appends what advance() waits for.
  void watched(std::vector<Watched>& out) const;

  // Closes everything; nothing is made any more. Joins the connection thread.
  void close_all();
  // The same where that thread does not exist. Async-signal-safe.
  void close_in_forked_child() noexcept;

 private:
  struct Slot {
    std::unique_ptr<DataLink> link;
    bool wanted = false;
  };
  Slot* slot(Rank peer, int stream);

  Directory directory_;
  std::unique_ptr<ConnectionThread> connection_thread_;
  std::vector<Slot> slots_;  // by rank, then by stream; never resized: a forked child reads it
  int missing_ = 0;          // wanted and not there
};

}  // namespace ciranda
