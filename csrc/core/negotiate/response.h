#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/result.h"
#include "core/negotiate/group.h"
#include "core/wire/messages.h"

namespace ciranda {

struct RankContribution {
  Rank rank = kNoRank;
  Contribution contribution = {};
  bool operator==(const RankContribution&) const = default;
};

// "All members agreed": run it now, or fail it everywhere with the same error. Every rank of the
// World gets every Response, also of groups that it is no member of.
struct Response {
  enum class Verdict : std::uint8_t {
    kRun,       // every member contributed or has joined, everything matches
    kError,     // `error` says why; the same on every rank
    kResubmit,  // a rank used a CacheId that was evicted: only that rank's submission (named by
                // `resubmit_rank` and its token) must be sent again in full; nobody else acts
  };
  Verdict verdict = Verdict::kRun;
  std::uint64_t index = 0;  // 0, 1, 2, … over kRun and kError responses: the agreed order
  std::shared_ptr<const RequestSpec> spec;  // null only for kResubmit
  // Whose operation it is. Null for kResubmit, and where an error says that there is no such group.
  std::shared_ptr<const Group> group;
  std::uint32_t occurrence = 0;
  // The number under which the spec is known from here on (kRun only), or kNoCacheId.
  CacheId cache_id = kNoCacheId;
  // Of members, ascending by rank. Missing: those in `joined`, those that had not submitted (kError
  // only), and members on other hosts whose Requests were aggregated, where nothing of theirs
  // matters.
  std::vector<RankContribution> contributions;
  // kRun: members that have joined and take part without a contribution, ascending.
  std::vector<Rank> joined;
  // kRun of kAddGroup: the group that exists from here on; of kRemoveGroup: the one that is gone.
  std::shared_ptr<const Group> changed;
  Rank last_joined = kNoRank;  // kRun of kJoin: who was the last
  std::optional<Error> error;
  Rank resubmit_rank = kNoRank;
  std::uint32_t resubmit_token = 0;
};

// nullptr if there is none. O(log ranks).
inline const Contribution* contribution_of(const Response& response, Rank rank) {
  const auto& all = response.contributions;
  const auto at = std::lower_bound(all.begin(), all.end(), rank,
                                   [](const RankContribution& c, Rank r) { return c.rank < r; });
  return at != all.end() && at->rank == rank ? &at->contribution : nullptr;
}

// An operation that some ranks wait for and others have not submitted.
struct StalledOp {
  std::shared_ptr<const RequestSpec> spec;
  std::uint32_t occurrence = 0;
  std::vector<Rank> missing;     // members, ascending; none of them has joined
  std::uint64_t since_tick = 0;  // when the first request was handled, in the caller's ticks
};

}  // namespace ciranda
