#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/wire/op_kind.h"
#include "core/wire/types.h"

namespace ciranda {

// Describes, as data, how an operation on the ranks' private memory runs through staging slots in
// shared memory. In each round every rank copies a piece of its input into its own slot, reduces
// its slice of the round from all slots, and copies what it needs out of the peers' slots. All
// offsets and sizes are bytes. "User" offsets count within the operation's input or output, "slot"
// offsets within a slot. Pure: the same on every rank, testable without memory.
struct StagedShape {
  OpKind kind = OpKind::kAllreduce;
  int ranks = 1;
  Rank root = kNoRank;              // broadcast
  std::uint64_t payload_bytes = 0;  // allreduce, broadcast: input = output = payload
  // allgather: rank r's rows are output bytes [offsets[r], offsets[r + 1]).
  // reducescatter: rank r's output is input bytes [offsets[r], offsets[r + 1]).
  // alltoall: rank s sends bytes [offsets[s * (ranks + 1) + d], offsets[… + d + 1]) to d.
  std::vector<std::uint64_t> offsets;
};

struct CopyIn {
  std::uint64_t user_offset = 0;
  std::uint64_t slot_offset = 0;
  std::uint64_t bytes = 0;
};
struct ReduceSlice {
  std::uint64_t slot_offset = 0;      // same place in every peer's slot
  std::uint64_t user_in_offset = 0;   // in the rank's own input, which it reads in place
  std::uint64_t user_out_offset = 0;  // in the rank's own output
  bool publish = false;               // the result also goes into the rank's own slot, for peers
  std::uint64_t bytes = 0;
};
struct CopyOut {
  Rank from = kNoRank;            // owner of the slot; the rank itself: it reads its own input
  std::uint64_t slot_offset = 0;  // from the rank itself: the offset in its input
  std::uint64_t user_offset = 0;
  std::uint64_t bytes = 0;
};

struct StagedRound {
  std::vector<CopyIn> copy_in;
  std::optional<ReduceSlice> reduce;
  // Copy-out waits until the peers have reduced, because it reads their results.
  bool copy_out_after_reduce = false;
  std::vector<CopyOut> copy_out;
};

class StagedSchedule {
 public:
  StagedSchedule() = default;  // has no rounds
  // One slot holds `slot_bytes`, at least 64 * ranks and not necessarily a multiple of that.
  StagedSchedule(StagedShape shape, std::uint64_t slot_bytes);

  std::uint64_t rounds() const { return rounds_; }
  // Writes to `out` what `rank` does in round `index`. The memory of `out` is reused.
  void round(Rank rank, std::uint64_t index, StagedRound& out) const;

  // An allreduce up to this size runs in one phase: every rank reduces the whole payload itself.
  static constexpr std::uint64_t kOnePhaseBytes = 8192;

 private:
  void allreduce(Rank rank, std::uint64_t index, StagedRound& out) const;
  void reducescatter(Rank rank, std::uint64_t index, StagedRound& out) const;
  void exchange(Rank rank, std::uint64_t index, StagedRound& out) const;
  std::uint64_t part_begin(Rank rank) const {
    return shape_.offsets[static_cast<std::size_t>(rank)];
  }
  std::uint64_t sent_bytes(Rank rank) const;

  StagedShape shape_;
  std::uint64_t round_bytes_ = 0;  // of a slot, per round; reducescatter: of one rank's part of it
  std::uint64_t rounds_ = 0;
};

}  // namespace ciranda
