#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/result.h"
#include "core/negotiate/readiness.h"

namespace ciranda {

// The ranks that have left the World for good, and the ranks that have joined. A rank that has
// joined has no more data until every rank has joined. It counts as present in the operations of
// its groups.
class Attendance {
 public:
  void leave(Rank rank);
  void join(Rank rank);
  // Forgets the joins, once all ranks have joined: every rank takes part again.
  void start_again();

  // Returns true if no rank has left or joined.
  bool is_full() const { return is_full_; }
  bool has_left(Rank rank) const;
  const std::vector<Rank>& departed() const { return departed_; }  // in the order of leaving
  const std::vector<Rank>& joined() const { return joined_; }      // ascending

  // Returns true if all members of the group have submitted the operation or joined.
  bool completes(const PendingOp& op) const {
    if (op.missing == 0 || is_full_) return op.missing == 0;
    return op.missing == static_cast<int>(joined_without(op).size());
  }
  // Returns the members that have joined without submitting the operation, ascending.
  std::vector<Rank> joined_without(const PendingOp& op) const;
  // Returns the members that keep the operation waiting, ascending.
  std::vector<Rank> missing(const PendingOp& op) const;

  // Returns the error that answers a Request of `from` at once: `from` is no member of `group`
  // (kInvalidArgument) or has joined (kInvalidArgument), or a member has left (kRankLeft). nullopt
  // if the Request counts.
  std::optional<Error> refusal_of(Rank from, const RequestSpec& spec, std::uint32_t occurrence,
                                  const Group& group) const;
  // Returns kRankLeft for an operation of `group` after a member has left.
  Error left_error(const RequestSpec& spec, std::uint32_t occurrence, const Group& group) const;

 private:
  std::vector<Rank> departed_;
  std::vector<Rank> joined_;
  bool is_full_ = true;  // cached, because it is read for each Request
};

}  // namespace ciranda
