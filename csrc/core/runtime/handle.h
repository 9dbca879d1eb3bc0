#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/result.h"

namespace ciranda {

// What the user waits on: one submission, done or failed exactly once.
class Operation {
 public:
  bool done() const { return done_.load(std::memory_order_acquire); }
  // Only once done.
  const Status& status() const {
    CIRANDA_ASSERT(done());
    return status_;
  }
  // alltoall: rows received from each rank. allgather: rows of each rank. Only once done.
  const std::vector<std::int64_t>& rows() const { return rows_; }

  // By the engine, once.
  void complete(Status status) {
    CIRANDA_ASSERT(!done());
    status_ = std::move(status);
    done_.store(true, std::memory_order_release);
  }
  void set_rows(std::vector<std::int64_t> rows) { rows_ = std::move(rows); }

 private:
  std::atomic<bool> done_{false};
  Status status_;                   // written before done_
  std::vector<std::int64_t> rows_;  // written before done_
};

using Handle = std::shared_ptr<Operation>;

}  // namespace ciranda
