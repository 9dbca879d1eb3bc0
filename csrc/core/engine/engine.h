#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/mutex.h"
#include "core/engine/background_thread.h"
#include "core/engine/engine_options.h"
#include "core/engine/rank_context.h"
#include "core/engine/seat.h"
#include "core/negotiate/stall.h"
#include "core/transport/local/life_watch.h"

namespace ciranda {

// The thread-safe interface to the engine of one rank. The thread that waits also drives: wait()
// takes the seat and runs cycles (engine/cycle.h). The background thread drives only when a peer
// needs this rank, when a peer dies, or, with Pace::overlap, when there is news.
class Engine {
 public:
  // Starts the engine and its background thread. Blocks only for local system calls. `mesh`
  // connects the ranks of this host, by local rank. On an error every rank of this host learns that
  // this one could not start.
  static Result<std::unique_ptr<Engine>> start(LocalMesh mesh, RemoteMesh remote,
                                               EngineOptions options);
  static Result<std::unique_ptr<Engine>> start(LocalMesh mesh, EngineOptions options);  // one host
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Rank rank() const { return rank_.rank(); }
  int size() const { return rank_.size(); }
  // The ranks of this host, by local rank.
  const std::vector<Rank>& local_ranks() const { return rank_.local_ranks(); }
  // Returns the process of a local rank.
  pid_t process_of(int local) { return rank_.peer(local).pid; }
  const std::vector<Rank>& members_here(const Group& group) const {
    return rank_.members_here(group);
  }
  int local_rank() const { return rank_.mesh.self; }
  int local_size() const { return rank_.mesh.size; }
  bool one_host() const { return rank_.one_host(); }
  // Callers take the backend of a RequestSpec from here.
  const BackendChoice& backend_choice() const { return rank_.options.backend_choice; }

  // Checks limits and names, and queues the submission. A disagreement between ranks becomes the
  // status of the handle. Like later calls, returns kNotInitialized after shutdown() and kForked in
  // a forked child. Thread-safe, does not block.
  Result<Handle> submit(Submission&& submission);
  // Returns true if the operation is done. If no thread drives, runs one turn first. If that turn
  // brings nothing, the ranks of this host for which this rank waits are asked to drive.
  // Thread-safe, does not block.
  bool poll(const Handle& handle);
  // Blocks until all operations are done. Returns the status of the first in `handles` that failed.
  // If `look` is set, calls it about a hundred times a second meanwhile; `look` may call the engine
  // and may block. Thread-safe.
  using Look = std::function<void()>;
  Status wait(std::span<const Handle> handles, const Look& look = {});
  Status wait(const Handle& handle, const Look& look = {}) {
    return wait(std::span(&handle, 1), look);
  }
  // Returns the first crossing of this rank with another (each has submitted an operation that the
  // other has not), among operations whose names begin with `scope`. Thread-safe. Waits for the
  // seat, but not for other ranks.
  std::optional<Crossing> crossing(std::string_view scope);

  // add_group(), remove_group() and join() need the agreement of all ranks of the World, which must
  // call them in the same order. They block until then. Thread-safe.
  //
  // `ranks` are ascending, without duplicates.
  Result<std::shared_ptr<const Group>> add_group(std::vector<Rank> ranks);
  // Returns kInvalidArgument on all ranks while an operation of the group is pending.
  Status remove_group(GroupId id);
  // Tells the ranks that this one has no more data. It contributes zeros to their reductions until
  // all ranks have joined. Returns the rank that joined last.
  Result<Rank> join();
  // Returns the number of joins that have completed on this rank. It is the same on every rank at
  // the same point of the program.
  std::uint64_t joins() const { return joins_.load(); }
  // Returns null if the group does not exist or has been removed. Thread-safe, does not block.
  std::shared_ptr<const Group> group(GroupId id) const { return rank_.groups.find(id); }

  // Allocates arena memory for in_arena submissions. Thread-safe.
  Result<ArenaBuffer> allocate_arena(std::size_t bytes);
  // Returns memory that the rank of this host with local rank `owner` has allocated; `ref` came
  // from there. The memory is not reused while this rank holds it. The owner must hold it until it
  // knows that this rank does. Thread-safe. Waits for the seat, but not for other ranks.
  Result<ArenaBuffer> map_arena(int owner, const ArenaRef& ref, std::size_t bytes);

  // Thread-safe, does not block.
  void set_pace(Pace pace) { rank_.pace.store(pace, std::memory_order_relaxed); }
  Pace pace() const { return rank_.pace.load(std::memory_order_relaxed); }

  EngineStats stats() const;
  // The timeline of this rank; JobTimeline is that of all ranks. If it still records, shutdown()
  // stops it and writes its file.
  Timeline& timeline() { return rank_.timeline; }
  // Returns the unfinished operations; after a failure, those that the failure ended.
  std::vector<PendingOperation> pending();

  // Fails the World on every rank with `reason`, for example because this rank raised an exception.
  // Thread-safe.
  void abort(const std::string& reason);
  // Finishes the operations that all ranks have agreed to, says goodbye and joins the background
  // thread. All other operations end with kShutdown. Idempotent. Blocks for a few seconds at most.
  void shutdown();
  // For a child made by fork: closes the descriptors that would hide the parent's death from its
  // peers. Later calls return kForked. Async-signal-safe.
  void after_fork_in_child() noexcept;

 private:
  Engine(LocalMesh mesh, RemoteMesh remote, EngineOptions options);
  Status start_threads();

  Status usable() const;
  Result<Handle> agree(Submission&& submission);
  // When a waiting thread next warns, gives up, looks for an interruption and calls `look`:
  // monotonic_ns, or kNever.
  struct Patience {
    std::uint64_t begin_ns;
    std::uint64_t warn_ns;
    std::uint64_t give_up_ns;
    std::uint64_t interruption_ns;
    std::uint64_t look_ns;
  };
  void drive_until_done(std::span<const Handle> handles, const Look& look);
  // Returns true when all handles are done, false when interruption_ns or look_ns has come. The
  // caller must handle either without the seat.
  bool drive(std::span<const Handle> handles, Patience& patience) EXCLUDES(seat_);
  void give_up_if_interrupted() EXCLUDES(seat_);
  // Warns about the operations that keep this rank waiting; with `give_up`, fails the World with
  // kTimeout.
  void report_stall(std::uint64_t waited_ns, bool give_up) REQUIRES(seat_);
  // The phases of shutdown(), each a few seconds long at most.
  void finish_what_is_agreed() REQUIRES(seat_);
  void say_goodbye() REQUIRES(seat_);
  void write_timeline();

  RankContext rank_;
  Seat seat_;
  BackgroundThread background_;
  LifeWatch lives_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> forked_{false};
  std::atomic<std::uint64_t> joins_{0};
  Mutex shutdown_mutex_;
  bool shut_down_ GUARDED_BY(shutdown_mutex_) = false;
};

}  // namespace ciranda
