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

// One submission, as the thread that submitted it sees it. It ends exactly once: done() then
// returns true, and status() has its error, if it failed. done() is thread-safe; call the other
// accessors only once it returns true.
class Operation {
 public:
  bool done() const { return done_.load(std::memory_order_acquire); }
  const Status& status() const {
    CIRANDA_ASSERT(done());
    return status_;
  }
  // alltoall: the rows received from each rank. allgather: the rows of each rank.
  const std::vector<std::int64_t>& rows() const {
    CIRANDA_ASSERT(done());
    return rows_;
  }
  // allgather: the digest that each rank gave of its bytes.
  const std::vector<std::optional<Digest>>& digests() const {
    CIRANDA_ASSERT(done());
    return digests_;
  }

  // Members that had joined and took no part, ascending.
  const std::vector<Rank>& joined() const {
    CIRANDA_ASSERT(done());
    return joined_;
  }
  // kAddGroup: the group that was added.
  const std::shared_ptr<const Group>& group() const {
    CIRANDA_ASSERT(done());
    return group_;
  }
  // join: the rank that joined last.
  Rank last_joined() const {
    CIRANDA_ASSERT(done());
    return last_joined_;
  }

  // The event that passes when the results are in the device's memory. It is null if they are in
  // CPU memory, where they are complete once the operation is done.
  const std::shared_ptr<DeviceEvent>& finished() const { return finished_; }

  // Called by the engine, once, after the setters below.
  void complete(Status status, std::shared_ptr<DeviceEvent> finished = nullptr) {
    CIRANDA_ASSERT(!done());  // I4
    status_ = std::move(status);
    finished_ = std::move(finished);
    done_.store(true, std::memory_order_release);
  }
  void set_rows(std::vector<std::int64_t> rows) {
    CIRANDA_ASSERT(!done());  // readers look as soon as it is done
    rows_ = std::move(rows);
  }
  void set_group(std::shared_ptr<const Group> group) { group_ = std::move(group); }
  void set_joined(std::vector<Rank> joined) {
    CIRANDA_ASSERT(!done());
    joined_ = std::move(joined);
  }
  void set_last_joined(Rank rank) { last_joined_ = rank; }
  void set_digests(std::vector<std::optional<Digest>> digests) { digests_ = std::move(digests); }

 private:
  std::atomic<bool> done_{false};
  // All of these are written before done_.
  Status status_;
  std::shared_ptr<DeviceEvent> finished_;
  std::vector<std::int64_t> rows_;
  std::vector<std::optional<Digest>> digests_;
  std::vector<Rank> joined_;
  std::shared_ptr<const Group> group_;
  Rank last_joined_ = kNoRank;
};

using Handle = std::shared_ptr<Operation>;

inline bool all_done(std::span<const Handle> handles) {
  return std::all_of(handles.begin(), handles.end(),
                     [](const Handle& handle) { return handle->done(); });
}

}  // namespace ciranda
