#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/negotiate/response.h"
#include "core/wire/messages.h"

namespace ciranda::sim {

// What the rules of docs/protocol.md say about one agreed order, in the plainest code that can say
// it: copies, linear searches, no sharing with csrc/core/negotiate.
struct Expected {
  Response::Verdict verdict = Response::Verdict::kRun;
  std::uint64_t index = 0;
  RequestSpec spec;
  std::uint32_t occurrence = 0;
  CacheId cache_id = kNoCacheId;
  std::vector<Rank> members;  // of its group; empty: there is no such group
  std::map<Rank, Contribution> contributions;
  std::vector<Rank> joined;
  std::optional<GroupId> changed;
  Rank last_joined = kNoRank;
  ErrorCode code = ErrorCode::kSystem;
  Rank rank = kNoRank;  // at fault, or the one that must resubmit
  std::uint32_t token = 0;
};

class Oracle {
 public:
  Oracle(int size, std::size_t cache_entries);

  // nullopt: the frame must be refused.
  std::optional<std::vector<Expected>> handle(Rank from, const Frame& frame);

  // "" if `response` is what was expected, else what differs.
  static std::string difference(const Expected& expected, const Response& response, int size);

  CacheId known(const RequestSpec& spec) const;
  struct Waiting {
    RequestSpec spec;
    std::uint32_t occurrence;
    std::vector<Rank> missing;
    bool operator==(const Waiting&) const = default;
  };
  std::vector<Waiting> waiting() const;

 private:
  struct Op {
    RequestSpec spec;  // of the first rank
    std::uint32_t occurrence = 0;
    std::map<Rank, Contribution> contributions;
    Rank differs = kNoRank;  // the first rank whose spec differs
  };
  using Out = std::vector<Expected>;

  std::optional<std::vector<Expected>> leave(Rank from);
  // False: the frame must be refused.
  bool submit(Rank from, const RequestSpec& spec, std::uint32_t occurrence,
              const Contribution& contribution, Out& out);
  void join(Rank from, Out& out);
  std::vector<Rank> missing(const Op& op) const;
  void finish(const Op& op, Out& out);
  std::optional<std::pair<ErrorCode, Rank>> fault(const Op& op) const;
  void change_groups(Expected& run);
  Expected error(const RequestSpec& spec, std::uint32_t occurrence, ErrorCode code, Rank rank);
  std::vector<Rank> joined_without(const Op& op) const;
  std::optional<std::pair<ErrorCode, Rank>> wrong_rows(const Op& op) const;
  bool has_group(const RequestSpec& spec) const {
    return groups_.contains(spec.group) || pairs_.contains(spec.group);
  }
  const std::vector<Rank>& members(const RequestSpec& spec) const {
    return (pairs_.contains(spec.group) ? pairs_ : groups_).at(spec.group);
  }
  static Rank without_memory(const Op& op);
  Rank first_departed(const std::vector<Rank>& members) const;
  void renew(const RequestSpec& spec);

  const int size_;
  const std::size_t cache_entries_;
  CacheId next_id_ = 1;
  GroupId next_group_ = 1;
  std::uint64_t next_index_ = 0;
  std::deque<std::pair<CacheId, RequestSpec>> cache_;  // longest not used first
  std::vector<Op> pending_;                            // oldest first
  std::map<GroupId, std::vector<Rank>> groups_;        // that exist
  std::map<GroupId, std::vector<Rank>> pairs_;         // which always do
  std::set<Rank> joined_;
  std::vector<Rank> departed_;  // the first one first
};

}  // namespace ciranda::sim
