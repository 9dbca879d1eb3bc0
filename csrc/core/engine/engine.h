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

namespace ciranda {

// One rank's engine: the thread-safe door. Whoever waits drives: wait() takes the seat and runs
// cycles itself (runtime/cycle); the background thread does only when a peer needs this rank, when
// a peer dies, or, with `overlap`, when there is news.
class Engine {
 public:
  // Blocking only for the local set-up of the meshes' descriptors. `mesh` connects the ranks of
  // this host, by their local ranks.
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
  const std::vector<Rank>& members_here(const Group& group) const {
    return rank_.members_here(group);
  }
  int local_rank() const { return rank_.mesh.self; }
  int local_size() const { return rank_.mesh.size; }
  bool one_host() const { return rank_.one_host(); }
  // What whoever makes a RequestSpec takes its backend from.
  const BackendChoice& backend_choice() const { return rank_.options.backend_choice; }

  // Thread-safe, does not block. Checks limits and names; what ranks disagree about comes as the
  // handle's error.
  Result<Handle> submit(Submission&& submission);
  // Makes some progress if nobody else drives, and asks the ranks of this host that have to act to
  // drive for more. Thread-safe, does not block.
  bool poll(const Handle& handle);
  // Blocks until all operations are done; the status of the first that failed. Thread-safe.
  // `look`, where there is one, is called about a hundred times a second meanwhile; it may call the
  // engine, and block.
  using Look = std::function<void()>;
  Status wait(std::span<const Handle> handles, const Look& look = {});
  Status wait(const Handle& handle, const Look& look = {}) {
    return wait(std::span(&handle, 1), look);
  }
  // Of the operations whose names begin with `scope`, those two for which this rank and another one
  // wait, each for the other. Thread-safe, does not block.
  std::optional<Crossing> crossing(std::string_view scope);

  // Agreed by all ranks of the World, which call these in the same order. Block; thread-safe. The
  // ranks of a group ascend, each once.
  Result<std::shared_ptr<const Group>> add_group(std::vector<Rank> ranks);
  // kInvalidArgument on all ranks while an operation of it is pending.
  Status remove_group(GroupId id);
  // This rank has no more data for now: until all ranks have joined it adds zeros to what the
  // others reduce. Gives the rank that joined last.
  Result<Rank> join();
  // How many joins this rank has seen end: the same on every rank, at the same point of its
  // program.
  std::uint64_t joins() const { return joins_.load(); }
  // Null where there is none (any more). Thread-safe, does not block.
  std::shared_ptr<const Group> group(GroupId id) const { return rank_.groups.find(id); }

  // Arena memory for in_arena submissions. Thread-safe.
  Result<ArenaBuffer> allocate_arena(std::size_t bytes);
  // Memory that the rank of this host with local rank `owner` has allocated and told this rank of.
  // It is not lent again while this rank holds it; the owner must hold it until it knows of that.
  // Thread-safe, does not block.
  Result<ArenaBuffer> map_arena(int owner, const ArenaRef& ref, std::size_t bytes);

  // Thread-safe, does not block.
  void set_pace(Pace pace) { rank_.pace.store(pace, std::memory_order_relaxed); }
  Pace pace() const { return rank_.pace.load(std::memory_order_relaxed); }

  EngineStats stats() const;
  // Of this rank; JobTimeline is that of all. The file of a running one is written by shutdown().
  Timeline& timeline() { return rank_.timeline; }
  // Unfinished operations; after a failure, those that the failure ended.
  std::vector<PendingOperation> pending();

  // Ends the World for every rank with `reason` (this rank raised). Thread-safe.
  void abort(const std::string& reason);
  // Says goodbye and joins the background thread; unfinished operations end with kShutdown.
  // Idempotent. Blocks at most some seconds.
  void shutdown();
  // In a child made by fork: closes what keeps the parent's peers waiting; every later call gives
  // kForked. Async-signal-safe.
  void after_fork_in_child() noexcept;

 private:
  Engine(LocalMesh mesh, RemoteMesh remote, EngineOptions options);
  Status start_background();

  Status usable() const;
  Result<Handle> agree(Submission&& submission);
  // When a thread that waits warns, gives up, looks for an interruption, and calls `look`.
  struct Patience {
    std::uint64_t begin_ns;
    std::uint64_t warn_ns;
    std::uint64_t give_up_ns;
    std::uint64_t interruption_ns;
    std::uint64_t look_ns;
  };
  void drive_until_done(std::span<const Handle> handles, const Look& look);
  // False when it is time for one of the last two, for which this thread must not drive.
  bool drive(std::span<const Handle> handles, Patience& patience) EXCLUDES(seat_);
  void give_up_if_interrupted() EXCLUDES(seat_);
  // Warns of what keeps this rank waiting, or, when its time is over, ends the job.
  void report_stall(std::uint64_t waited_ns, bool give_up) REQUIRES(seat_);
  // The phases of shutdown(), each at most some seconds long.
  void finish_what_is_agreed() REQUIRES(seat_);
  void say_goodbye() REQUIRES(seat_);
  void write_timeline();

  RankContext rank_;
  Seat seat_;
  BackgroundThread background_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> forked_{false};
  std::atomic<std::uint64_t> joins_{0};
  Mutex shutdown_mutex_;
  bool shut_down_ GUARDED_BY(shutdown_mutex_) = false;
};

}  // namespace ciranda
