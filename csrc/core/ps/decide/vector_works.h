#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "core/ps/decide/journal.h"
#include "core/ps/decide/messages.h"
#include "core/ps/decide/shard.h"
#include "core/ps/decide/vectors.h"

namespace ciranda::ps {

inline constexpr std::size_t kWorksMax = std::size_t{1} << 24;  // in a job

// The vector operations that a server has done for its coordinator, with their results. A
// coordinator that is started again repeats them from the first and gets the same results.
//
// Not thread-safe. Never blocks.
class VectorWorks {
 public:
  // Does the operation on `shard`, unless it was done before, and returns its results. The change
  // is written to `journal`, if there is one. `shard` is null before it has parameters.
  Result<VectorValues> take(const VectorWork& work, Shard* shard, Journal* journal);
  // Replays the next operation.
  Status repeat(const VectorWork& work, Shard& shard);

  const std::vector<VectorsWorked>& done() const { return done_; }
  void restore(std::vector<VectorsWorked> done) { done_ = std::move(done); }

 private:
  Status check(const VectorWork& work) const;
  bool is_new(const VectorWork& work) const { return work.number > done_.size(); }

  std::vector<VectorsWorked> done_;
};

}  // namespace ciranda::ps
