#pragma once

#include <span>
#include <vector>

#include "core/transport/local/control_block.h"
#include "core/transport/local/local_mesh.h"

namespace ciranda {

// Tells the other ranks of the host that something changed in shared memory. Call after the change
// is published. Cheap while nobody sleeps: one fence and two loads a peer. Thread-safe. Uses the
// mesh's descriptors, which must outlive it.
class PeerBells {
 public:
  PeerBells(ControlBlock control, const LocalMesh& mesh);

  // Wakes every peer's sleeping waiters, and the background threads that listen for news.
  void ring_all() const;
  // The same for some local ranks: nobody else waits for what changed.
  void ring_those(std::span<const Rank> ranks) const;
  // The same for `members`, of whose group the news are, and for every background thread that
  // listens, perhaps for room.
  void ring_members(std::span<const Rank> members) const;
  // Wakes `rank`'s background thread unless one of its threads drives anyway: something waits for
  // an action of that rank.
  void ask_to_drive(Rank rank) const;
  // Wakes this rank's own background thread.
  void wake_own_background() const { wake_background(self_); }
  // Wakes everything of every rank: the World has failed.
  void ring_alarm() const;

 private:
  void ring(Rank rank) const;
  void wake_listener(Rank rank) const;
  void wake_background(Rank rank) const;

  ControlBlock control_;
  Rank self_;
  std::vector<int> doorbells_;  // eventfds by rank
};

}  // namespace ciranda
