#pragma once

#include <span>
#include <vector>

#include "core/transport/local/control_block.h"
#include "core/transport/local/local_mesh.h"

namespace ciranda {

// Tells the other ranks of the host that something changed in shared memory. A caller first
// publishes the change. While nobody sleeps a call costs one fence, and two loads a peer.
// Thread-safe. Uses the mesh's descriptors, which must outlive it.
class PeerBells {
 public:
  PeerBells(ControlBlock control, const LocalMesh& mesh);

  // Wakes all waiting threads of the peers, and their background threads that listen.
  void ring_all() const;
  // Wakes the same threads of `ranks` only (local ranks), for a change that no other rank waits
  // for.
  void ring_those(std::span<const Rank> ranks) const;
  // Wakes the waiting threads of `members`, for a change that concerns their group. Also wakes
  // every background thread that listens: it may wait for room in the log.
  void ring_members(std::span<const Rank> members) const;
  // Makes `rank` drive, because something waits for it: wakes its background thread unless one of
  // its threads already drives.
  void ask_to_drive(Rank rank) const;
  // Wakes this rank's own background thread.
  void wake_own_background() const { wake_background(self_); }
  // Wakes every thread of every rank, because the World has failed.
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
