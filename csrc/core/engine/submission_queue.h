#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/backend/backend.h"
#include "core/base/inline_vector.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/engine/handle.h"
#include "core/wire/messages.h"

namespace ciranda {

// An operation that a thread hands to the engine, with this rank's memory for it. The memory must
// stay valid and unchanged until the handle is done.
struct Submission {
  // An operation without a name of the user's has the name unnamed(kind). Such operations, and
  // changes of membership, are matched by count: the n-th of a kind belongs to the n-th on every
  // other rank. allgather, alltoall: dimension 0 is kAnyRows.
  std::shared_ptr<const RequestSpec> spec;
  bool is_checked = false;         // submit() accepted this spec object before; never with rows
  bool is_part = false;            // part of an agreed operation: never held back
  std::vector<std::int64_t> rows;  // see Contribution
  std::optional<Digest> digest;    // see Contribution
  ArenaRef arena;                  // see Contribution
  std::shared_ptr<void> lease;     // keeps its memory alive; kAddGroup: the region provided
  decltype(Execution::work) work;  // in_arena; see Execution
  DeviceWork device;               // if the tensors are in a device's memory
  // By tensor of the spec; empty for in_arena and barrier.
  InlineVector<const std::byte*, 2> inputs;
  // By tensor, for kinds whose outputs are as large as their inputs. For other kinds the size is
  // known only after the agreement: the engine then asks `allocate` for memory of tensor `index`
  // with dimension 0 = `rows`, from any thread that drives it.
  InlineVector<std::byte*, 2> outputs;
  std::function<Result<std::byte*>(std::size_t index, std::int64_t rows)> allocate;
  Handle handle;
  std::uint32_t occurrence = 0;  // set by the queue
  std::uint64_t submitted_ns = 0;
  std::uint64_t agreed_ns = 0;   // set by the engine, for the timeline
  std::uint32_t parts_left = 0;  // its fused operations that still run
  Status outcome = {};           // the first error of those that have ended
};

// The only way for submissions into the engine: many threads push, the driver drains. Holds at most
// kInFlightMax unfinished submissions; push() returns kLimit beyond that. Thread-safe.
class SubmissionQueue {
 public:
  // Returns kDuplicateName if the group has an unfinished submission of this kind and name, and the
  // error of close() after that.
  Status push(Submission&& submission) EXCLUDES(mutex_);
  // Moves all queued submissions to the end of `out`; returns false if there were none.
  bool drain_into(std::vector<Submission>& out) EXCLUDES(mutex_);
  bool empty() const { return queued_.load(std::memory_order_acquire) == 0; }
  // Makes every later push() return `why`.
  void close(const Error& why) EXCLUDES(mutex_);
  // Frees the name of a finished submission.
  void release(const RequestSpec& spec) EXCLUDES(mutex_);
  // Restarts the count of unnamed operations; all ranks do so after a join.
  void count_anew() EXCLUDES(mutex_);
  // Forgets the names of a removed group.
  void forget(GroupId group) EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::vector<Submission> queue_ GUARDED_BY(mutex_);
  // The names in use in one group, by kind: operations of different kinds may share a name.
  struct Names {
    std::array<std::unordered_set<std::string>, kOpKindCount> live;
    std::vector<std::unordered_set<std::string>::node_type> spare;  // nodes of freed names
    std::array<std::uint32_t, kOpKindCount> unnamed_count{};
    bool add(const RequestSpec& spec);  // returns false if the name is in use
    void remove(const RequestSpec& spec);
  };
  Names& names_of(GroupId group) REQUIRES(mutex_) {
    return group == kWorldGroup ? world_names_ : other_names_[group];
  }

  Names world_names_ GUARDED_BY(mutex_);
  std::map<GroupId, Names> other_names_ GUARDED_BY(mutex_);
  std::size_t in_flight_ GUARDED_BY(mutex_) = 0;
  Status open_ GUARDED_BY(mutex_);
  std::atomic<std::size_t> queued_{0};
};

}  // namespace ciranda
