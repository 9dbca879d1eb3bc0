#include "core/engine/engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/wire/operation_name.h"
#include "core/wire/pair.h"
#include "core/wire/request_check.h"

namespace ciranda {
namespace {

constexpr std::uint64_t kShutdownFinishNs = 2 * kSecondNs;  // for operations that all agreed to
constexpr std::uint64_t kFarewellNs = kSecondNs;            // for room in the log
constexpr std::uint64_t kFarewellFarNs = 5 * kSecondNs;     // also for the way to other hosts
constexpr std::chrono::microseconds kFarewellPause{100};
constexpr std::uint64_t kInterruptionNs = kSecondNs / 10;  // between two checks
constexpr std::uint64_t kLookNs = kSecondNs / 100;         // between two calls of `look`

Error shut_down_error() {
  return {.code = ErrorCode::kNotInitialized,
          .text = "ciranda has been shut down on this rank; call init() again"};
}

std::uint64_t after(std::uint64_t start_ns, std::uint64_t ns) {  // kNever if `ns` is 0
  return ns > 0 ? start_ns + ns : kNever;
}

}  // namespace

// -------------------------------------------------------------------------------------------
// The start

Result<std::unique_ptr<Engine>> Engine::start(LocalMesh mesh, EngineOptions options) {
  RemoteMesh remote = RemoteMesh::one_host(mesh.self, mesh.size);
  return start(std::move(mesh), std::move(remote), std::move(options));
}

Result<std::unique_ptr<Engine>> Engine::start(LocalMesh mesh, RemoteMesh remote,
                                              EngineOptions options) {
  std::unique_ptr<Engine> engine(
      new Engine(std::move(mesh), std::move(remote), std::move(options)));
  if (Status started = engine->start_threads(); !started) {
    Error why = started.error();
    why.text = "rank " + std::to_string(engine->rank()) + " could not start: " + why.text;
    why.rank = engine->rank();
    static_cast<void>(engine->rank_.control.fail(why));
    engine->rank_.bells.ring_alarm();
    return why;
  }
  return engine;
}

Engine::Engine(LocalMesh mesh, RemoteMesh remote, EngineOptions options)
    : rank_(std::move(mesh), std::move(remote), std::move(options)),
      seat_(rank_),
      background_(rank_, seat_) {
  CIRANDA_ASSERT(static_cast<int>(local_ranks().size()) == local_size() &&
                 rank_.global(local_rank()) == rank());
  CIRANDA_ASSERT(rank_.mesh.peers.size() == static_cast<std::size_t>(local_size()));
}

Status Engine::start_threads() {
  CIRANDA_TRY(seat_.alone().start());
  CIRANDA_TRY(background_.start());
  if (!rank_.options.died) return {};
  return lives_.start(rank_.control, rank_.mesh.self, local_size(), [this](Rank local) {
    rank_.dying.store(local);
    rank_.bells.wake_own_background();
    rank_.options.died(local);
  });
}

Engine::~Engine() {
  if (forked_.load()) {
    background_.abandon();
    lives_.abandon();
    seat_.alone().abandon();
    return;
  }
  if (background_.started()) shutdown();
}

// -------------------------------------------------------------------------------------------
// For users

Status Engine::usable() const {
  if (forked_.load(std::memory_order_relaxed)) {
    return Error{.code = ErrorCode::kForked,
                 .text =
                     "this process was forked from a rank and is not a rank itself; call "
                     "collectives in the parent, or start the child with spawn and its own rank"};
  }
  if (stopping_.load(std::memory_order_acquire)) return shut_down_error();
  return {};
}

Result<Handle> Engine::submit(Submission&& submission) {
  CIRANDA_ASSERT(submission.spec != nullptr);
  CIRANDA_ASSERT(!submission.is_checked || submission.rows.empty());  // see Submission
  CIRANDA_TRY(usable());
  if (const Status status = Backends::available(submission.spec->backend, rank_.options.backends);
      !status) {
    return about(status.error(), *submission.spec);
  }
  CIRANDA_TRY(rank_.groups.check_member(rank(), *submission.spec));
  if (!submission.is_checked) {
    CIRANDA_TRY(
        check_limits(*submission.spec, {.rows = submission.rows, .digest = submission.digest}));
  }
  // By the callers: memory for each tensor, or a way to get it.
  const std::size_t tensors = submission.spec->in_arena ? 0 : submission.spec->tensors.size();
  CIRANDA_ASSERT(submission.inputs.size() >= tensors);
  CIRANDA_ASSERT(submission.outputs.size() >= tensors || submission.allocate);
  if (is_pair(submission.spec->group)) {
    const auto region = GroupBackends::provide_region_of_pair(rank_, submission.spec->group);
    submission.arena = region ? region.value() : kNoRegion;  // submitted anyway: the peer waits
  }
  Handle handle = std::make_shared<Operation>();
  submission.handle = handle;
  if (rank_.timeline.is_on()) submission.submitted_ns = monotonic_ns();
  CIRANDA_TRY(rank_.queue.push(std::move(submission)));
  seat_.publish();  // at once, so that the peers can begin
  if (rank_.pace.load(std::memory_order_relaxed).overlap) rank_.bells.wake_own_background();
  return handle;
}

Result<std::shared_ptr<const Group>> Engine::add_group(std::vector<Rank> ranks) {
  RequestSpec spec{.kind = OpKind::kAddGroup};
  Submission submission;
  auto region = GroupBackends::provide_region(rank_, ranks);
  submission.arena = region ? region.value().ref : kNoRegion;  // submitted anyway: peers wait
  if (region) submission.lease = std::move(region.value().lease);
  spec.members = std::move(ranks);
  submission.spec = std::make_shared<const RequestSpec>(std::move(spec));
  const auto done = agree(std::move(submission));
  if (done) return done.value()->group();
  Error why = done.error();
  if (!region && why.code == ErrorCode::kSystem) why.text += ": " + region.error().text;
  return why;
}

Status Engine::remove_group(GroupId id) {
  Submission submission;
  submission.spec =
      std::make_shared<const RequestSpec>(RequestSpec{.kind = OpKind::kRemoveGroup, .removes = id});
  const auto done = agree(std::move(submission));
  return done ? Status() : Status(done.error());
}

Result<Rank> Engine::join() {
  Submission submission;
  submission.spec = std::make_shared<const RequestSpec>(RequestSpec{.kind = OpKind::kJoin});
  const auto done = agree(std::move(submission));
  if (!done) return done.error();
  ++joins_;
  return done.value()->last_joined();
}

Result<Handle> Engine::agree(Submission&& submission) {
  auto handle = submit(std::move(submission));
  if (!handle) return handle;
  CIRANDA_TRY(wait(handle.value()));
  return handle;
}

bool Engine::poll(const Handle& handle) {
  if (!handle->done() && !forked_.load()) seat_.poll(handle);
  return handle->done();
}

Status Engine::wait(std::span<const Handle> handles, const Look& look) {
  if (forked_.load()) return usable();
  if (!all_done(handles)) drive_until_done(handles, look);
  for (const Handle& handle : handles) {
    if (!handle->status().ok()) return handle->status();
  }
  return {};
}

std::optional<Crossing> Engine::crossing(std::string_view scope) {
  if (forked_.load()) return std::nullopt;
  const Seat::Taken taken(seat_, Seat::As::kVisitor);
  return seat_.cycle().crossing(scope);
}

void Engine::drive_until_done(std::span<const Handle> handles, const Look& look) {
  const EngineOptions& options = rank_.options;
  RankContext::Counters& counters = rank_.counters;
  const std::uint64_t begin_ns = monotonic_ns();
  const std::uint64_t moved_ns = counters.communicating_ns.load(std::memory_order_relaxed);
  Patience patience = {
      .begin_ns = begin_ns,
      .warn_ns = after(begin_ns, options.stall_warning_ns),
      .give_up_ns = after(begin_ns, options.stall_shutdown_ns),
      .interruption_ns = after(begin_ns, options.interrupted ? kInterruptionNs : 0),
      .look_ns = after(begin_ns, look ? kLookNs : 0)};
  while (!drive(handles, patience)) {
    if (monotonic_ns() >= patience.interruption_ns) {
      give_up_if_interrupted();
      patience.interruption_ns = after(monotonic_ns(), kInterruptionNs);
    }
    if (monotonic_ns() >= patience.look_ns) {
      look();
      patience.look_ns = after(monotonic_ns(), kLookNs);
    }
  }
  const std::uint64_t spent = monotonic_ns() - begin_ns;
  const std::uint64_t moved = counters.communicating_ns.load(std::memory_order_relaxed) - moved_ns;
  counters.waiting_ns.fetch_add(spent > moved ? spent - moved : 0, std::memory_order_relaxed);
}

bool Engine::drive(std::span<const Handle> handles, Patience& patience) {
  const Seat::Taken taken(seat_, Seat::As::kDriver);
  while (!seat_.cycle().drive(handles)) {
    const std::uint64_t pause_ns = std::min(patience.interruption_ns, patience.look_ns);
    seat_.sleep(handles, std::min({patience.warn_ns, patience.give_up_ns, pause_ns}));
    const std::uint64_t now = monotonic_ns();
    if (now >= patience.warn_ns || now >= patience.give_up_ns) {
      report_stall(now - patience.begin_ns, now >= patience.give_up_ns);
      patience.warn_ns = after(now, rank_.options.stall_warning_ns);
    }
    if (now >= pause_ns) return false;
  }
  return true;
}

// Runs without the seat: interrupted() may block, and the peers may need this rank meanwhile.
void Engine::give_up_if_interrupted() {
  if (!rank_.options.interrupted()) return;
  abort("rank " + std::to_string(rank()) + " (pid " + std::to_string(::getpid()) +
        ") was interrupted while it waited for other ranks");
}

void Engine::report_stall(std::uint64_t waited_ns, bool give_up) {
  const EngineOptions& options = rank_.options;
  Cycle& cycle = seat_.cycle();
  if (cycle.failure()) return;
  const std::optional<std::string> report =
      cycle.stall_report(give_up ? options.stall_shutdown_ns : options.stall_warning_ns);
  if (give_up) {
    cycle.fail(
        {.code = ErrorCode::kTimeout,
         .text = "stalled for " + std::to_string(waited_ns / kSecondNs) + " s; " +
                 report.value_or("an operation that all ranks have submitted does not finish")});
  }
  if (!report || !options.warn || options.stall_warning_ns == 0) return;
  if (one_host()) cycle.ask_where(monotonic_ns());  // else look_around() asks
  seat_.aside([&] { options.warn(*report); });      // may block
}

Result<ArenaBuffer> Engine::allocate_arena(std::size_t bytes) {
  CIRANDA_TRY(usable());
  return rank_.segments.allocate(bytes);
}

Result<ArenaBuffer> Engine::map_arena(int owner, const ArenaRef& ref, std::size_t bytes) {
  CIRANDA_TRY(usable());
  const Seat::Taken taken(seat_, Seat::As::kVisitor);
  const auto place = seat_.cycle().resolve_arena(owner, ref, bytes);
  if (!place) return place.error();
  return ArenaBuffer{
      .ref = ref, .data = place.value(), .bytes = bytes, .lease = rank_.segments.lease(owner, ref)};
}

EngineStats Engine::stats() const {
  const RankContext::Counters& counters = rank_.counters;
  return {.waiting_ns = counters.waiting_ns.load(std::memory_order_relaxed),
          .communicating_ns = counters.communicating_ns.load(std::memory_order_relaxed),
          .operations = counters.operations.load(std::memory_order_relaxed),
          .bytes = counters.bytes.load(std::memory_order_relaxed)};
}

std::vector<PendingOperation> Engine::pending() {
  if (forked_.load()) return {};
  const Seat::Taken taken(seat_, Seat::As::kVisitor);
  return seat_.cycle().pending();
}

void Engine::abort(const std::string& reason) {
  if (forked_.load() || stopping_.load()) return;
  const Seat::Taken taken(seat_, Seat::As::kVisitor);
  seat_.cycle().fail({.code = ErrorCode::kRankLost, .text = reason, .rank = rank()});
}

// -------------------------------------------------------------------------------------------
// The end

void Engine::shutdown() {
  const MutexLock once(shutdown_mutex_);
  if (shut_down_ || forked_.load()) return;
  shut_down_ = true;
  stopping_.store(true, std::memory_order_release);
  {
    const Seat::Taken taken(seat_, Seat::As::kDriver);
    finish_what_is_agreed();
    seat_.cycle().end_submissions(shut_down_error());  // also for threads past usable()
    say_goodbye();
    CIRANDA_ASSERT(!seat_.cycle().unfinished());  // I10
    seat_.cycle().stop_reading();
  }
  rank_.bells.ring_all();
  background_.stop();
  lives_.stop();
  {
    const Seat::Taken taken(seat_, Seat::As::kVisitor);
    seat_.cycle().close_connections();
  }
  CIRANDA_ASSERT(!background_.started());  // nobody drives any more
  rank_.mesh.place.reset();
  write_timeline();
}

// The peers need this rank to finish the agreed operations, and this rank needs peers that compute
// meanwhile.
void Engine::finish_what_is_agreed() {
  const std::uint64_t finish_by = monotonic_ns() + kShutdownFinishNs;
  for (;;) {
    if (!seat_.cycle().run()) {
      for (const Rank local : seat_.cycle().blocked_on()) rank_.bells.ask_to_drive(local);
    }
    if (seat_.cycle().agreed_is_finished() || monotonic_ns() >= finish_by) return;
    seat_.aside([] { std::this_thread::yield(); });
  }
}

void Engine::say_goodbye() {
  const std::uint64_t farewell_by = monotonic_ns() + (one_host() ? kFarewellNs : kFarewellFarNs);
  while (!seat_.cycle().say_goodbye() && monotonic_ns() < farewell_by) {
    seat_.aside([] { std::this_thread::sleep_for(kFarewellPause); });
  }
}

void Engine::write_timeline() {
  const Status written = rank_.timeline.stop();
  if (!written && rank_.options.warn) rank_.options.warn(written.error().text);
}

void Engine::after_fork_in_child() noexcept {
  forked_.store(true);
  seat_.alone().close_in_forked_child();
}

}  // namespace ciranda
