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

// What this rank learns of its peers beside their frames: the memory that ranks of this host
// announce through their sockets, that such a socket was closed, that another host does not answer.
//
// One thread at a time. Never blocks.
class PeerWatch {
 public:
  explicit PeerWatch(RankContext& rank) : rank_(rank) {}

  // The background thread is woken by the bell of this rank and by the sockets of its peers.
  Status start();

  // Maps the memory that the rank of this host with that local rank has announced; false when it
  // has closed its socket.
  Result<bool> receive_segments(int local);
  // Memory of that rank; an error when it never announced it.
  Result<std::byte*> resolve(int owner, const ArenaRef& ref, std::uint64_t bytes);
  // The same without a look at its socket: null until receive_segments() has found it, which has to
  // be called then for who is unannounced().
  Result<std::byte*> look_up(int owner, const ArenaRef& ref, std::uint64_t bytes);
  std::optional<int> take_unannounced() { return std::exchange(unannounced_, std::nullopt); }

  // Its socket is closed: nothing more comes from there.
  void forget(int local) { rank_.sockets.remove(rank_.peer(local).socket.get()); }
  // The reason to end the World, of a rank of this host and of a rank of another one.
  Error lost(int local) const;
  Error lost_host(const DataLink& link, const std::string& why) const;

  // Whether it is time to look if other hosts answer; several times a second.
  bool due(std::uint64_t now_ns);
  std::uint64_t answer_limit_ms() const;
  static constexpr std::uint64_t kLookNs = 250'000'000;

 private:
  int host_of(Rank rank) const;

  RankContext& rank_;
  std::optional<int> unannounced_;  // whose stage waits in its socket
  std::uint64_t next_look_ns_ = 0;
};

}  // namespace ciranda
