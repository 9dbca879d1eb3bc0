#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "core/engine/rank_context.h"

namespace ciranda {

// Watches the peers apart from their frames: memory that ranks of this host announce through their
// sockets, sockets that close, and other hosts that do not answer.
//
// Only for the thread that has the seat. Never blocks.
class PeerWatch {
 public:
  explicit PeerWatch(RankContext& rank) : rank_(rank) {}

  // Makes this rank's doorbell and its peers' sockets wake the background thread.
  Status start();

  // Maps the memory that a rank of this host has announced. Returns false if the rank has closed
  // its socket.
  Result<bool> receive_segments(int local);
  // Returns memory of a rank of this host, and kMalformed if that rank never announced it.
  Result<std::byte*> resolve(int owner, const ArenaRef& ref, std::uint64_t bytes);
  // Returns such memory without reading the socket: null if it has not been received yet.
  // take_unannounced() then returns the owner, and the caller must call receive_segments() for it.
  Result<std::byte*> look_up(int owner, const ArenaRef& ref, std::uint64_t bytes);
  std::optional<int> take_unannounced() { return std::exchange(unannounced_, std::nullopt); }

  // Stops watching the socket, which the peer has closed.
  void forget(int local) { rank_.sockets.remove(rank_.peer(local).socket.get()); }
  // The error that ends the World when a rank of this host, or of another host, is lost.
  Error lost(int local) const;
  Error lost_host(const DataLink& link, const std::string& why) const;

  // Returns true if it is time to check that other hosts answer: every kLookNs.
  bool due(std::uint64_t now_ns);
  std::uint64_t answer_limit_ms() const;
  static constexpr std::uint64_t kLookNs = 250'000'000;

 private:
  int host_of(Rank rank) const;

  RankContext& rank_;
  std::optional<int> unannounced_;  // the owner whose announcement waits in its socket
  std::uint64_t next_look_ns_ = 0;
};

}  // namespace ciranda
