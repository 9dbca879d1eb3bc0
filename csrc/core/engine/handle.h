#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/device.h"
#include "core/base/result.h"
#include "core/base/secret.h"
#include "core/negotiate/group.h"

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
  // allgather: what each rank gave as the digest of its bytes. Only once done.
  const std::vector<std::optional<Digest>>& digests() const { return digests_; }

  // Members that had joined and took no part, ascending. Only once done.
  const std::vector<Rank>& joined() const { return joined_; }
  // The group that was added. Only once done.
  const std::shared_ptr<const Group>& group() const { return group_; }
  // join: the rank that joined last. Only once done.
  Rank last_joined() const { return last_joined_; }

  // Passes when the results are in memory of the device; null if they are in the CPU's, at once.
  // Only once done.
  const std::shared_ptr<DeviceEvent>& finished() const { return finished_; }

  // By the engine, once.
  void complete(Status status, std::shared_ptr<DeviceEvent> finished = nullptr) {
    CIRANDA_ASSERT(!done());
    status_ = std::move(status);
    finished_ = std::move(finished);
    done_.store(true, std::memory_order_release);
  }
  void set_rows(std::vector<std::int64_t> rows) { rows_ = std::move(rows); }
  void set_group(std::shared_ptr<const Group> group) { group_ = std::move(group); }
  void set_joined(std::vector<Rank> joined) { joined_ = std::move(joined); }
  void set_last_joined(Rank rank) { last_joined_ = rank; }
  void set_digests(std::vector<std::optional<Digest>> digests) { digests_ = std::move(digests); }

 private:
  std::atomic<bool> done_{false};
  Status status_;                               // written before done_
  std::shared_ptr<DeviceEvent> finished_;       // the same
  std::vector<std::int64_t> rows_;              // written before done_
  std::vector<std::optional<Digest>> digests_;  // the same
  std::vector<Rank> joined_;                    // the same
  std::shared_ptr<const Group> group_;          // the same
  Rank last_joined_ = kNoRank;                  // the same
};

using Handle = std::shared_ptr<Operation>;

inline bool all_done(std::span<const Handle> handles) {
  return std::all_of(handles.begin(), handles.end(),
                     [](const Handle& handle) { return handle->done(); });
}

}  // namespace ciranda
