#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/result.h"
#include "core/negotiate/readiness.h"

namespace ciranda {

// Who has left the World for good, and who has joined: has no more data until every rank has said
// so. A rank that has joined counts as present in the operations of its groups.
class Attendance {
 public:
  void leave(Rank rank);
  void join(Rank rank);
  // All have joined: from here on everybody takes part again.
  void start_again();

  // Nobody has left or joined.
  bool is_full() const { return is_full_; }
  bool has_left(Rank rank) const;
  const std::vector<Rank>& departed() const { return departed_; }  // the first one first
  const std::vector<Rank>& joined() const { return joined_; }      // ascending

  // All members have submitted it, but for those that have joined.
  bool completes(const PendingOp& op) const {
    if (op.missing == 0 || is_full_) return op.missing == 0;
    return op.missing == static_cast<int>(joined_without(op).size());
  }
  // Members that have joined and not submitted it, ascending.
  std::vector<Rank> joined_without(const PendingOp& op) const;
  // Members that keep it waiting, ascending.
  std::vector<Rank> missing(const PendingOp& op) const;

  // Why a Request of `from` for an operation of `group` is answered at once, whatever others say.
  std::optional<Error> refusal_of(Rank from, const RequestSpec& spec, std::uint32_t occurrence,
                                  const Group& group) const;
  // A member of `group` has left.
  Error left_error(const RequestSpec& spec, std::uint32_t occurrence, const Group& group) const;

 private:
  std::vector<Rank> departed_;
  std::vector<Rank> joined_;
  bool is_full_ = true;  // read for each Request
};

}  // namespace ciranda
