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

// What a user hands to the engine: a Request and this rank's memory for it. The memory stays valid
// and untouched until the handle is done.
struct Submission {
  // Named unnamed(kind), as memberships always are: the n-th of a kind belongs to the n-th on every
  // other rank. allgather, alltoall: dimension 0 is kAnyRows.
  std::shared_ptr<const RequestSpec> spec;
  bool is_checked = false;         // submit() has taken this very spec before; without rows
  bool is_part = false;            // of an operation that is agreed: nothing holds it up
  std::vector<std::int64_t> rows;  // see Contribution
  std::optional<Digest> digest;    // the same
  ArenaRef arena;                  // the same
  std::shared_ptr<void> lease;     // keeps memory of it; kAddGroup: what this rank provides
  decltype(Execution::work) work;  // in_arena; see Execution
  DeviceWork device;               // where the tensors are memory of a device
  // By tensor of the spec; empty for in_arena and barrier.
  InlineVector<const std::byte*, 2> inputs;
  // By tensor, for kinds whose outputs are as large as their inputs. Others learn their size only
  // from the agreement and ask `allocate` for memory of tensor `index` with dimension 0 = `rows`;
  // it may be called from any thread that drives the engine.
  InlineVector<std::byte*, 2> outputs;
  std::function<Result<std::byte*>(std::size_t index, std::int64_t rows)> allocate;
  Handle handle;
  std::uint32_t occurrence = 0;  // set by the queue
  std::uint64_t submitted_ns = 0;
  std::uint64_t agreed_ns = 0;   // set by the engine, for the timeline
  std::uint32_t parts_left = 0;  // fused operations that still run for it
  Status outcome = {};           // the first error of those that do not
};

// The only door into the engine: many threads in, the driver out. Bounded by kInFlightMax
// unfinished submissions; beyond it push() is refused with kLimit.
class SubmissionQueue {
 public:
  // kDuplicateName when an unfinished submission of the kind has this name. After close(): why.
  Status push(Submission&& submission) EXCLUDES(mutex_);
  // Moves everything that waits to the end of `out`; false if there was nothing.
  bool drain_into(std::vector<Submission>& out) EXCLUDES(mutex_);
  bool empty() const { return queued_.load(std::memory_order_acquire) == 0; }
  // Nothing more is taken.
  void close(const Error& why) EXCLUDES(mutex_);
  // The submission is finished: its name is free again.
  void release(const RequestSpec& spec) EXCLUDES(mutex_);
  // All ranks begin to count unnamed operations anew, after a join.
  void count_anew() EXCLUDES(mutex_);
  // The group is gone, and so are its names.
  void forget(GroupId group) EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::vector<Submission> queue_ GUARDED_BY(mutex_);
  // By kind: each has names of its own.
  struct Names {
    std::array<std::unordered_set<std::string>, kOpKindCount> live;
    std::vector<std::unordered_set<std::string>::node_type> spare;  // memory of names of before
    std::array<std::uint32_t, kOpKindCount> unnamed_count{};
    bool add(const RequestSpec& spec);  // false: it is there already
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
