#include "core/transport/local/peer_bells.h"

#include <unistd.h>

#include "core/base/assert.h"
#include "core/base/yield_point.h"

namespace ciranda {

PeerBells::PeerBells(ControlBlock control, const LocalMesh& mesh)
    : control_(control), self_(mesh.self) {
  CIRANDA_ASSERT(static_cast<std::size_t>(mesh.size) == mesh.peers.size());
  CIRANDA_ASSERT(self_ >= 0 && self_ < mesh.size);
  for (const LocalMesh::Peer& peer : mesh.peers) doorbells_.push_back(peer.doorbell.get());
}

void PeerBells::ring_all() const {
  // Pairs with Doorbell::announce(): orders the published change before the look for sleepers.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const auto ranks = static_cast<Rank>(doorbells_.size());
  for (Rank rank = 0; rank < ranks; ++rank) ring(rank);
}

void PeerBells::ring_those(std::span<const Rank> ranks) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // as above
  for (const Rank rank : ranks) ring(rank);
}

void PeerBells::ring_members(std::span<const Rank> members) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // as above
  for (const Rank rank : members) {
    yield_point();
    if (rank != self_) control_.flags(rank).waiters.wake_sleepers();
  }
  const auto ranks = static_cast<Rank>(doorbells_.size());
  for (Rank rank = 0; rank < ranks; ++rank) wake_listener(rank);
}

void PeerBells::ring(Rank rank) const {
  if (rank == self_) return;
  yield_point();
  control_.flags(rank).waiters.wake_sleepers();
  wake_listener(rank);
}

void PeerBells::wake_listener(Rank rank) const {
  if (rank == self_) return;
  RankFlags& flags = control_.flags(rank);
  if (flags.background_listens.load(std::memory_order_relaxed) != 0 &&
      flags.background_listens.exchange(0) != 0) {
    wake_background(rank);
  }
}

void PeerBells::ask_to_drive(Rank rank) const {
  CIRANDA_ASSERT(rank >= 0 && static_cast<std::size_t>(rank) < doorbells_.size());
  if (control_.flags(rank).drivers.load(std::memory_order_seq_cst) == 0) wake_background(rank);
}

void PeerBells::ring_alarm() const {
  const auto ranks = static_cast<Rank>(doorbells_.size());
  for (Rank rank = 0; rank < ranks; ++rank) {
    control_.flags(rank).waiters.ring();
    wake_background(rank);
  }
}

void PeerBells::wake_background(Rank rank) const {
  CIRANDA_ASSERT(static_cast<std::size_t>(rank) < doorbells_.size());
  const std::uint64_t one = 1;
  // Fails only if the counter is full, and then the thread is awake anyway, or if the rank is gone.
  [[maybe_unused]] const ssize_t written =
      ::write(doorbells_[static_cast<std::size_t>(rank)], &one, sizeof one);
}

}  // namespace ciranda
