#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "core/backend/backend.h"
#include "core/plan/shm_schedule.h"
#include "core/transport/local/group_region.h"
#include "core/transport/local/peer_bells.h"

namespace ciranda {

// Reduces at memory speed between the members of a group on one host. Members are called ranks here
// and numbered by their index among those on this host.
//
// Private memory goes through staging slots by a StagedSchedule; the counters in GroupFlags tell
// each rank's progress. Data in the arena is reduced in place: ranks claim chunks (ClaimBoard), sum
// all ranks' copies in rank order and write the result to all copies. So a rank that waits does the
// work of a rank that still computes, and the bits do not depend on which rank did it (I11).
class ShmBackend final : public Backend {
 public:
  // `locals`: the members' local ranks, ascending. `self`: this rank's index in `locals`.
  ShmBackend(GroupRegion region, PeerBells bells, int self, std::vector<Rank> locals);

  bool supports(const FusedOp&) const override { return true; }
  void start(Execution&& execution) override;
  bool advance() override;
  bool idle() const override { return staged_.empty() && claimed_.empty(); }
  void blocked_on(std::vector<Rank>& out) const override;
  void abort(const Error& why) override;

  // 2 ranks read and write 512 KiB per chunk. A large bucket has a few hundred chunks of some
  // microseconds each; a claim takes 0.1 us.
  static constexpr std::uint64_t kChunkBytes = 131072;

 private:
  // An operation on private memory, in progress. Only the front of the queue advances.
  struct Staged {
    Execution execution;
    StagedSchedule schedule;
    std::vector<std::uint64_t> in_begin, out_begin;  // where each member begins in the payload
    std::uint64_t first_round = 0;                   // among all rounds of the group
    std::uint64_t copied_in = 0, reduced = 0, copied_out = 0;
  };
  // An operation on data in the arena.
  struct Claimed {
    Execution execution;
    std::uint64_t operation = 0;
    std::uint64_t chunks = 0;
  };

  bool advance_staged(Staged& op);
  bool advance_claimed(Claimed& op);
  std::optional<std::uint64_t> claim_chunk(const Claimed& op);
  bool claimed_complete(const Claimed& op) const;
  void finish_chunk(const Claimed& op);

  bool copy_in(Staged& op);
  bool reduce(Staged& op);
  bool copy_out(Staged& op);
  bool all_reached(std::atomic<std::uint64_t> GroupFlags::*counter, std::uint64_t value) const;
  void publish(std::atomic<std::uint64_t> GroupFlags::*counter, std::uint64_t value);

  const GroupRegion region_;
  const PeerBells bells_;
  const Rank self_;
  const int ranks_;
  const std::vector<Rank> locals_;
  std::uint64_t rounds_started_ = 0;      // staged rounds of all operations started so far
  std::uint64_t operations_started_ = 0;  // operations on the arena
  std::list<Staged> staged_;
  std::list<Staged> spare_;  // finished operations, whose memory is reused
  std::list<Claimed> claimed_;
  StagedRound round_;  // scratch
};

}  // namespace ciranda
