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

// Decides which operations run. Every rank feeds its own Negotiator the same frames in the same
// order, so all copies hold the same state and give the same Responses (invariants I1, I2, I7 in
// docs/invariants.md). No I/O, no clock, no threads. Not thread-safe: the owner serialises calls.
class Negotiator {
 public:
  struct Options {
    int size = 1;                                      // ranks of the World
    std::size_t cache_entries = kCacheEntriesDefault;  // 0: cache nothing
    Hosts hosts = {};                                  // the ranks' hosts; empty: one host
    int host = 0;                                      // the host of this rank
  };
  explicit Negotiator(const Options& options);
  ~Negotiator();
  Negotiator(const Negotiator&) = delete;
  Negotiator& operator=(const Negotiator&) = delete;

  // Handles the next frame of the agreed order and appends the resulting Responses to `out`. `tick`
  // serves stall reports only and does not influence decisions. Returns kMalformed if the frame
  // does not decode or `from` must not send it, and kLimit if `from` has too many operations in
  // flight. After an error the World must fail.
  Status handle_frame(Rank from, std::span<const std::byte> frame, std::uint64_t tick,
                      std::vector<Response>& out);

  // Returns the number under which `spec` is known now, or kNoCacheId. O(1), no allocation.
  CacheId known(const RequestSpec& spec) const;

  // Returns the group of `op` if its Requests may be aggregated, else nullptr. They may if its
  // number stands for a spec without rows, no rank has left or joined, and no operation of its name
  // and occurrence is pending. Valid until the next frame. O(1), no allocation.
  const Group* may_aggregate(const KnownOp& op) const;

  // Returns the operations that some members have submitted but not all, oldest first.
  std::vector<StalledOp> waiting() const;

  const GroupTable& groups() const;

  // Returns the ranks that have joined, ascending. The list is cleared once all ranks have joined.
  const std::vector<Rank>& joined() const;

  // Returns the number of Requests of `rank` that are counted and not answered. A rank sends a
  // membership Request only while this equals the number of all its unanswered Requests: then none
  // of them will have to be sent again.
  std::size_t in_flight(Rank rank) const;

  // Returns the ranks that sent kLeave, in the order of leaving.
  const std::vector<Rank>& departed() const;
  bool has_left(Rank rank) const {
    return std::find(departed().begin(), departed().end(), rank) != departed().end();
  }
  // Returns true if all of `ranks` have left.
  bool have_left(std::span<const Rank> ranks) const {
    return std::all_of(ranks.begin(), ranks.end(), [this](Rank rank) { return has_left(rank); });
  }

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ciranda
