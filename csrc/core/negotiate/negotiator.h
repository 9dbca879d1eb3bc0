#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/negotiate/group_table.h"
#include "core/negotiate/response.h"
#include "core/wire/introduction.h"
#include "core/wire/messages.h"

namespace ciranda {

// Decides what runs. Every rank feeds its own Negotiator the same frames in the same order, so
// all copies hold the same state and give the same responses (invariants I1, I2, I7 in
// docs/invariants.md). No I/O, no clock, no threads; the owner serialises calls.
class Negotiator {
 public:
  struct Options {
    int size = 1;                                      // ranks of the World
    std::size_t cache_entries = kCacheEntriesDefault;  // 0 = cache nothing
    Hosts hosts = {};                                  // where they are; empty: all on one host
    int host = 0;                                      // of this copy
  };
  explicit Negotiator(const Options& options);
  ~Negotiator();
  Negotiator(const Negotiator&) = delete;
  Negotiator& operator=(const Negotiator&) = delete;

  // Handles the next frame of the agreed order and appends what it decided to `out`.
  // `tick` is remembered for stall reports only and takes no part in decisions.
  // A frame that does not decode, or that a rank must not send, is an error: the World must fail.
  Status handle_frame(Rank from, std::span<const std::byte> frame, std::uint64_t tick,
                      std::vector<Response>& out);

  // The number under which `spec` is known now, or kNoCacheId. O(1), no allocation.
  CacheId known(const RequestSpec& spec) const;

  // The group of `op`, if its Requests may be aggregated: its number stands for a spec without
  // rows, nobody has left or joined, and nothing is pending under its name. Else nullptr. Valid
  // until the next frame; O(1), no allocation.
  const Group* may_aggregate(const KnownOp& op) const;

  // Operations submitted by some members but not by all, oldest first.
  std::vector<StalledOp> waiting() const;

  const GroupTable& groups() const;

  // Ranks that have joined since all ranks had last, ascending.
  const std::vector<Rank>& joined() const;

  // Requests of `rank` that are counted and not answered. A rank sends what is_membership() only
  // when this is all that it has sent and is not answered: nothing then has to be sent again.
  std::size_t in_flight(Rank rank) const;

  // Ranks that sent kLeave, the first one first.
  const std::vector<Rank>& departed() const;
  bool has_left(Rank rank) const {
    return std::find(departed().begin(), departed().end(), rank) != departed().end();
  }
  // All of them.
  bool have_left(std::span<const Rank> ranks) const {
    return std::all_of(ranks.begin(), ranks.end(), [this](Rank rank) { return has_left(rank); });
  }

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ciranda
