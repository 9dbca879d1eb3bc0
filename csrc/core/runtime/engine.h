#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/negotiate/negotiator.h"
#include "core/negotiate/stall.h"
#include "core/runtime/backends.h"
#include "core/runtime/carrier.h"
#include "core/runtime/segment_table.h"
#include "core/runtime/submission_queue.h"
#include "core/runtime/tensor_table.h"
#include "core/runtime/timeline.h"
#include "core/transport/local_mesh.h"
#include "core/transport/peer_bells.h"
#include "core/transport/remote_mesh.h"

namespace ciranda {

struct EngineOptions {
  // Also drive from the background thread while user threads compute: pays only with free cores.
  bool overlap = false;
  // How long a blocked caller looks for news before it sleeps. 0 when ranks outnumber cores. Longer
  // than a sleeper takes to wake (20 to 50 us): with less, two ranks that answer each other stay
  // asleep in turns (4 bytes then take 40 us instead of 4).
  std::uint64_t spin_ns = 100'000;
  std::uint64_t stall_warning_ns = 60'000'000'000;  // 0: never warn
  std::uint64_t stall_shutdown_ns = 0;              // 0: wait for ever
  std::size_t cache_entries = kCacheEntriesDefault;
  FusionLimits fusion;
  Operations operations;
  RingOptions ring;                                            // between hosts
  std::span<const BackendEntry> backends = backend_entries();  // those that need a library
  std::uint64_t peer_timeout_ms = 3'000;         // without an answer of another host's kernel
  std::string timeline_path;                     // empty: none
  std::function<void(const std::string&)> warn;  // one sentence; called from any thread
};

// Where this rank's time in blocking calls went, and what was moved; since the start.
struct EngineStats {
  std::uint64_t waiting_ns = 0;        // blocked on other ranks
  std::uint64_t communicating_ns = 0;  // copying and reducing
  std::uint64_t operations = 0;
  std::uint64_t bytes = 0;  // payload of finished operations on this rank
};

// An operation of this rank that is not finished, for error reports.
struct PendingOperation {
  OpKind kind = OpKind::kAllreduce;
  std::string name;
  std::vector<Rank> missing;  // ranks that had not submitted it
};

// One rank's engine. A cycle: submissions out as a frame, frames in, agreed operations to the
// backend, completions. Whoever waits drives: wait() takes the seat and runs cycles itself; the
// background thread sleeps in epoll and drives only when a peer needs this rank, when a peer dies,
// or, with `overlap`, when there is news. docs/threads.md tells who may touch what.
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

  Rank rank() const { return remote_.self; }
  int size() const { return remote_.size(); }
  // The ranks of this host, by local rank.
  const std::vector<Rank>& local_ranks() const { return remote_.local_ranks(); }
  int local_rank() const { return mesh_.self; }
  int local_size() const { return mesh_.size; }
  bool one_host() const { return remote_.hosts.size() == 1; }
  // What whoever makes a RequestSpec takes its backend from.
  const Operations& operations() const { return options_.operations; }

  // Thread-safe, does not block. Checks limits and names; what ranks disagree about comes as the
  // handle's error.
  Result<Handle> submit(Submission submission);
  // Makes some progress if nobody else drives, and calls on the ranks of this host that have to act
  // for more. Thread-safe, does not block.
  bool poll(const Handle& handle);
  // Blocks until all operations are done; the status of the first that failed. Thread-safe.
  Status wait(std::span<const Handle> handles);
  Status wait(const Handle& handle) { return wait(std::span(&handle, 1)); }

  // Arena memory for in_arena submissions. Thread-safe.
  Result<ArenaBuffer> allocate_arena(std::size_t bytes);
  // Memory that the rank of this host with local rank `owner` has allocated and told this rank of.
  // It is not lent again while this rank holds it; the owner must hold it until it knows of that.
  // Thread-safe, does not block.
  Result<ArenaBuffer> map_arena(int owner, const ArenaRef& ref, std::size_t bytes);

  EngineStats stats() const;
  // Unfinished operations; after a failure, those that the failure ended.
  std::vector<PendingOperation> pending();

  // Ends the World for every rank with `reason` (this rank raised). Thread-safe.
  void abort(const std::string& reason);
  // Says goodbye and joins the background thread; unfinished operations end with kShutdown.
  // Idempotent. Blocks at most some seconds.
  void shutdown();
  // In a child made by fork: closes what keeps the parent's peers waiting; every later call gives
  // kForked. Async-signal-safe.
  void after_fork_in_child() noexcept CIRANDA_ANNOTATION(no_thread_safety_analysis);

 private:
  Engine(LocalMesh mesh, RemoteMesh remote, EngineOptions options);
  Status watch_descriptors();
  Status start_background();

  // A cycle and its steps. True when something moved.
  bool run_cycle() REQUIRES(seat_);
  bool publish_submissions() REQUIRES(seat_);
  bool send_frames() REQUIRES(seat_);
  bool append(std::span<const std::byte> frame) REQUIRES(seat_);
  bool read_log() REQUIRES(seat_);
  bool advance_carrier() REQUIRES(seat_);
  Carrier::Deliver into_log() REQUIRES(seat_);
  bool advance_backends() REQUIRES(seat_);

  // Runs cycles until all handles are done (true) or nothing moved for the spin time (false).
  bool drive(std::span<const Handle> handles) REQUIRES(seat_);
  void sleep_for_news(std::span<const Handle> handles, std::uint64_t until_ns) EXCLUDES(seat_);
  // Local ranks without whose background thread or call nothing goes on.
  std::vector<Rank> blocked_on() REQUIRES(seat_);
  void call_on(std::span<const Rank> ranks);
  // Publishes what other threads submitted while this one held the seat. After every unlock.
  void publish_leftovers() EXCLUDES(seat_);
  void wake_own_background();
  bool peer_sleeps() const;
  bool frames_to_carry() EXCLUDES(seat_);
  Status usable() const;
  std::uint64_t patience_ns() const;

  void queue_request(std::uint32_t token, bool in_full) REQUIRES(seat_);
  void handle_responses() REQUIRES(seat_);
  Status start_execution(const FusedOp& op) REQUIRES(seat_);
  Status locate_in_arena(const Response& response, Submission& submission, Execution& execution)
      REQUIRES(seat_);
  Result<std::byte*> resolve_arena(int owner, const ArenaRef& ref, std::uint64_t bytes)
      REQUIRES(seat_);
  HostMemory host_memory();
  BackendContext backend_context();
  std::unique_ptr<Exchange> exchange(const std::string& name, std::vector<std::byte> mine);
  void finish(std::uint32_t token, const Status& status,
              const std::shared_ptr<DeviceEvent>& finished = nullptr) REQUIRES(seat_);
  // Everything submitted, sent or not.
  void finish_all(const Error& why) REQUIRES(seat_);
  void fail(const Error& why) REQUIRES(seat_);

  void background_loop();
  int look_again_ms() const REQUIRES(seat_);
  // It went to sleep for ever before there was something to look at again.
  bool background_oversleeps() const REQUIRES(seat_) {
    return patience_ms_ < 0 && look_again_ms() >= 0;
  }
  // With overlap: what this thread does not wait for goes on without it, when the peers have news.
  // False: there is something to do at once, so it has to be woken.
  bool leave_to_background() REQUIRES(seat_);
  void take_what_arrived() REQUIRES(seat_);
  // Maps the memory that a rank of this host has told of; false when it has closed its socket.
  Result<bool> receive_segments(int local) REQUIRES(seat_);
  void service_peer(int local) REQUIRES(seat_);
  void peer_closed(int local) REQUIRES(seat_);
  void host_closed(int host, const Error& why) REQUIRES(seat_);
  void check_hosts_answer(std::uint64_t now_ns) REQUIRES(seat_);
  int host_of(Rank rank) const;
  bool departed(std::span<const Rank> ranks) const REQUIRES(seat_);
  bool departed(Rank rank) const REQUIRES(seat_) { return departed(std::span(&rank, 1)); }
  bool carried_everything() const REQUIRES(seat_);
  // Without the seat: nobody drives any more.
  void close_remote() CIRANDA_ANNOTATION(no_thread_safety_analysis);
  Rank global(int local) const { return local_ranks()[static_cast<std::size_t>(local)]; }
  // While a thread drives it looks at the sockets to other hosts itself; else the background thread
  // is woken by them.
  void arm_sockets() REQUIRES(seat_);
  void disarm_sockets() REQUIRES(seat_);
  // Warns of what keeps this rank waiting; `give_up`: and ends the job.
  void report_stall(std::uint64_t waited_ns, bool give_up) EXCLUDES(seat_);
  std::vector<PendingOperation> pending_now() REQUIRES(seat_);

  // Constant after construction.
  LocalMesh mesh_;
  RemoteMesh remote_;
  const EngineOptions options_;
  const ControlBlock control_;
  const PeerBells bells_;
  Fd epoll_;
  std::unique_ptr<Timeline> timeline_;

  // Thread-safe by themselves.
  SegmentTable segments_;
  SubmissionQueue queue_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> forked_{false};
  std::atomic<std::uint64_t> next_call_ns_{0};
  std::atomic<int> seat_wanted_{0};  // user threads that want to drive: the background one yields
  std::atomic<std::uint64_t> waiting_ns_{0};
  std::atomic<std::uint64_t> communicating_ns_{0};
  std::atomic<std::uint64_t> operations_{0};
  std::atomic<std::uint64_t> bytes_{0};

  Mutex seat_;  // whoever holds it drives
  ShmLog log_ GUARDED_BY(seat_);
  Negotiator negotiator_ GUARDED_BY(seat_);
  std::unique_ptr<Carrier> carrier_ GUARDED_BY(seat_);  // the first rank of one of several hosts
  std::optional<int> unannounced_ GUARDED_BY(seat_);    // whose stage waits in its socket
  std::vector<Watched> armed_ GUARDED_BY(seat_);
  std::uint64_t next_look_ns_ GUARDED_BY(seat_) = 0;  // whether the other hosts answer
  int patience_ms_ GUARDED_BY(seat_) = 0;             // of the background thread; -1: for ever
  // By local rank, on several hosts: it has said goodbye, which may not be in the order yet.
  std::vector<bool> leaving_ GUARDED_BY(seat_);
  TensorTable table_ GUARDED_BY(seat_);
  std::vector<Submission> drained_ GUARDED_BY(seat_);
  Frame frame_ GUARDED_BY(seat_);
  std::size_t frame_bytes_ GUARDED_BY(seat_) = 0;
  std::deque<std::vector<std::byte>> unsent_ GUARDED_BY(seat_);  // frames the full log refused
  std::vector<std::byte> encoded_ GUARDED_BY(seat_);
  std::vector<Response> responses_ GUARDED_BY(seat_);
  bool finished_any_ GUARDED_BY(seat_) = false;
  std::optional<Error> failure_ GUARDED_BY(seat_);
  std::vector<PendingOperation> pending_at_failure_ GUARDED_BY(seat_);
  Backends backends_ GUARDED_BY(seat_);

  Mutex shutdown_mutex_;
  bool shut_down_ GUARDED_BY(shutdown_mutex_) = false;
  std::thread background_;
};

}  // namespace ciranda
