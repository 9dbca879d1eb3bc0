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

// The agreed answer to the Requests of all members: they run the operation now, or it fails on all
// of them with the same error. Every rank of the World gets every Response, also those of groups
// that it is no member of.
struct Response {
  enum class Verdict : std::uint8_t {
    kRun,       // every member has contributed or joined, and all specs match
    kError,     // `error` says why; the same on every rank
    kResubmit,  // a rank used a CacheId that was evicted: `resubmit_rank` sends the submission with
                // `resubmit_token` again in full, and no other rank acts
  };
  Verdict verdict = Verdict::kRun;
  std::uint64_t index = 0;  // 0, 1, 2, … over kRun and kError Responses: the agreed order
  std::shared_ptr<const RequestSpec> spec;  // null only for kResubmit
  // The operation's group. Null for kResubmit, and if the error is that the group does not exist.
  std::shared_ptr<const Group> group;
  std::uint32_t occurrence = 0;
  // kRun only: the number under which the spec is known from here on, or kNoCacheId.
  CacheId cache_id = kNoCacheId;
  // The members' contributions, ascending by rank. Members in `joined` have none, and neither have
  // members that did not submit (kError only). If Requests were aggregated, members on other hosts
  // have none or an empty one, because this host does not need them. If one Request alone is
  // refused, only its sender's is here.
  std::vector<RankContribution> contributions;
  // kRun: members that have joined and take part without a contribution, ascending.
  std::vector<Rank> joined;
  // kRun of kAddGroup: the new group. kRun of kRemoveGroup: the removed one.
  std::shared_ptr<const Group> changed;
  Rank last_joined = kNoRank;  // kRun of kJoin: the last rank to join
  std::optional<Error> error;
  Rank resubmit_rank = kNoRank;
  std::uint32_t resubmit_token = 0;
};

// Returns the contribution of `rank`, or nullptr. O(log ranks).
inline const Contribution* contribution_of(const Response& response, Rank rank) {
  const auto& all = response.contributions;
  const auto at = std::lower_bound(all.begin(), all.end(), rank,
                                   [](const RankContribution& c, Rank r) { return c.rank < r; });
  return at != all.end() && at->rank == rank ? &at->contribution : nullptr;
}

// An operation that some members have submitted and other members have not.
struct StalledOp {
  std::shared_ptr<const RequestSpec> spec;
  std::uint32_t occurrence = 0;
  std::vector<Rank> missing;     // members that have neither submitted nor joined, ascending
  std::uint64_t since_tick = 0;  // when the first Request was handled, in the caller's ticks
};

}  // namespace ciranda
