#include "core/runtime/engine.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "core/backend/shm/shm_backend.h"
#include "core/base/clock.h"
#include "core/base/thread.h"
#include "core/plan/fusion.h"
#include "core/runtime/execution.h"
#include "core/runtime/submitted_exchange.h"

namespace ciranda {
namespace {

constexpr std::uint64_t kMsInNs = 1'000'000;
constexpr std::uint64_t kSecondNs = 1000 * kMsInNs;
constexpr std::uint64_t kPatienceNs = 10 * kSecondNs;  // at most, see Joiner
constexpr std::uint64_t kCallPauseNs = kMsInNs;        // between two calls of poll() on a peer
constexpr std::uint64_t kForEverNs = 3600 * kSecondNs;
constexpr std::uint64_t kShutdownFinishNs = 2 * kSecondNs;  // for operations that all agreed to
constexpr std::uint64_t kFarewellNs = kSecondNs;            // for room in the log
constexpr std::chrono::microseconds kFarewellPause{100};
constexpr std::uint64_t kFarewellFarNs = 5 * kSecondNs;  // and to other hosts and back
// A keep-alive a second, so that the last answer within the timeout may still be on its way.
constexpr std::uint64_t kLastAnswerMs = 500;
constexpr int kLookForAnswersMs = 250;
constexpr std::uint32_t kRemoteEvent = UINT32_MAX;  // of a socket to another host

void relax_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::string describe(const RequestSpec& spec) {
  return std::string(op_kind_name(spec.kind)) + " '" + spec.name + "'";
}

Error about(const Error& why, const RequestSpec& spec) {
  Error error = why;
  error.text = describe(spec) + ": " + why.text;
  error.tensor = spec.name;
  return error;
}

Error shut_down_error() {
  return {.code = ErrorCode::kNotInitialized,
          .text = "ciranda has been shut down on this rank; call init() again"};
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::start(LocalMesh mesh, EngineOptions options) {
  RemoteMesh remote = RemoteMesh::one_host(mesh.self, mesh.size);
  return start(std::move(mesh), std::move(remote), std::move(options));
}

Result<std::unique_ptr<Engine>> Engine::start(LocalMesh mesh, RemoteMesh remote,
                                              EngineOptions options) {
  std::unique_ptr<Engine> engine(
      new Engine(std::move(mesh), std::move(remote), std::move(options)));
  if (Status started = engine->start_background(); !started) {
    Error why = started.error();
    why.text = "rank " + std::to_string(engine->rank()) + " could not start: " + why.text;
    why.rank = engine->rank();
    static_cast<void>(engine->control_.fail(why));
    engine->bells_.ring_alarm();
    return why;
  }
  return engine;
}

Status Engine::start_background() {
  CIRANDA_TRY(watch_descriptors());
  auto thread = start_thread("ciranda", [this] { background_loop(); });
  if (!thread) return thread.error();
  background_ = std::move(thread).value();
  return {};
}

Engine::Engine(LocalMesh mesh, RemoteMesh remote, EngineOptions options)
    : mesh_(std::move(mesh)),
      remote_(std::move(remote)),
      options_(std::move(options)),
      control_(mesh_.control.data(), mesh_.size),
      bells_(control_, mesh_),
      segments_(mesh_),
      log_(control_.log_memory(), mesh_.size, mesh_.self),
      negotiator_({.size = size(),
                   .cache_entries = options_.cache_entries,
                   .hosts = remote_.hosts,
                   .host = remote_.host}),
      leaving_(static_cast<std::size_t>(mesh_.size), false),
      backends_(std::make_unique<ShmBackend>(control_, bells_, mesh_.self, mesh_.size),
                one_host() ? nullptr
                           : std::make_unique<RingBackend>(remote_, control_, bells_, mesh_.self,
                                                           host_memory(), options_.ring),
                backend_context(), options_.backends) {
  CIRANDA_ASSERT(static_cast<int>(local_ranks().size()) == mesh_.size &&
                 global(mesh_.self) == rank());
  if (!one_host() && mesh_.self == 0) {
    carrier_ = std::make_unique<Carrier>(std::move(remote_.control), remote_.hosts, remote_.host,
                                         negotiator_, patience_ns());
  }
  if (!options_.timeline_path.empty()) {
    timeline_ = std::make_unique<Timeline>(options_.timeline_path, rank());
  }
}

Status Engine::watch_descriptors() {
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return Error::from_errno("epoll_create1", errno);
  for (Rank rank = 0; rank < mesh_.size; ++rank) {
    const LocalMesh::Peer& peer = mesh_.peers[static_cast<std::size_t>(rank)];
    const int fd = rank == mesh_.self ? peer.doorbell.get() : peer.socket.get();
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = static_cast<std::uint32_t>(rank);
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return Error::from_errno("epoll_ctl", errno);
    }
  }
  return {};
}

Engine::~Engine() {
  if (forked_.load()) {
    background_.detach();  // it exists in the parent only
    backends_.abandon();
    return;
  }
  if (background_.joinable()) shutdown();  // else it never started
}

// Early enough for a report of the stall.
std::uint64_t Engine::patience_ns() const {
  std::uint64_t patience_ns = kPatienceNs;
  for (const std::uint64_t stall_ns : {options_.stall_warning_ns, options_.stall_shutdown_ns}) {
    if (stall_ns > 0) patience_ns = std::min(patience_ns, stall_ns / 4);
  }
  return patience_ns;
}

// -------------------------------------------------------------------------------------------
// For users

Status Engine::usable() const {
  if (forked_.load(std::memory_order_relaxed)) {
    return Error{.code = ErrorCode::kForked,
                 .text =
                     "this process was forked from a rank and is none itself; call collectives "
                     "in the parent, or start the child with spawn and its own rank"};
  }
  if (stopping_.load(std::memory_order_acquire)) return shut_down_error();
  return {};
}

Result<Handle> Engine::submit(Submission submission) {
  CIRANDA_TRY(usable());
  if (const Status status = Backends::available(submission.spec->backend, options_.backends);
      !status) {
    return about(status.error(), *submission.spec);
  }
  CIRANDA_TRY(
      check_limits(*submission.spec, {.rows = submission.rows, .digest = submission.digest}));
  Handle handle = std::make_shared<Operation>();
  submission.handle = handle;
  if (timeline_) submission.submitted_ns = monotonic_ns();
  CIRANDA_TRY(queue_.push(std::move(submission)));
  // Tell the peers at once, unless a thread drives anyway: it does so when it leaves the seat.
  publish_leftovers();
  if (options_.overlap) wake_own_background();
  return handle;
}

void Engine::publish_leftovers() {
  while (!queue_.empty() && seat_.try_lock()) {
    if (publish_submissions()) {
      advance_carrier();
      bells_.ring_all();
    }
    seat_.unlock();
  }
}

void Engine::wake_own_background() {
  const std::uint64_t one = 1;
  const int own = mesh_.peers[static_cast<std::size_t>(mesh_.self)].doorbell.get();
  [[maybe_unused]] const ssize_t written = ::write(own, &one, sizeof one);
}

bool Engine::poll(const Handle& handle) {
  if (handle->done() || forked_.load()) return handle->done();
  if (seat_.try_lock()) {
    const bool moved = run_cycle();
    const std::vector<Rank> blockers = moved || handle->done() ? std::vector<Rank>() : blocked_on();
    const bool oversleeps = background_oversleeps() || !leave_to_background();
    seat_.unlock();
    publish_leftovers();
    if (oversleeps) wake_own_background();
    call_on(blockers);
  }
  return handle->done();
}

// Who polls without a pause shall not keep the peers from their work.
void Engine::call_on(std::span<const Rank> ranks) {
  const std::uint64_t now = monotonic_ns();
  std::uint64_t next = next_call_ns_.load(std::memory_order_relaxed);
  if (ranks.empty() || now < next) return;
  if (!next_call_ns_.compare_exchange_strong(next, now + kCallPauseNs)) return;
  for (const Rank rank : ranks) bells_.call_on(rank);
}

Status Engine::wait(std::span<const Handle> handles) {
  if (forked_.load()) return usable();
  const std::uint64_t begin_ns = monotonic_ns();
  const std::uint64_t moved_ns = communicating_ns_.load(std::memory_order_relaxed);
  const auto after = [](std::uint64_t start_ns, std::uint64_t ns) {  // 0: never
    return ns > 0 ? start_ns + ns : UINT64_MAX;
  };
  std::uint64_t warn_ns = after(begin_ns, options_.stall_warning_ns);
  const std::uint64_t give_up_ns = after(begin_ns, options_.stall_shutdown_ns);
  RankFlags& flags = control_.flags(mesh_.self);
  flags.drivers.fetch_add(1, std::memory_order_seq_cst);
  bool unfinished = false;  // other operations, in which peers may wait for this rank
  bool oversleeps = false;
  for (;;) {
    seat_wanted_.fetch_add(1, std::memory_order_relaxed);
    seat_.lock();
    seat_wanted_.fetch_sub(1, std::memory_order_relaxed);
    disarm_sockets();
    const bool done = drive(handles);
    if (done) {
      const bool left = leave_to_background();
      // Who will wake may have found this thread at work, and have woken nobody else.
      oversleeps = background_oversleeps() || backends_.will_wake() || !left;
      unfinished = !backends_.idle();
      arm_sockets();
    }
    seat_.unlock();
    publish_leftovers();
    if (done) break;
    sleep_for_news(handles, std::min(warn_ns, give_up_ns));
    const std::uint64_t now = monotonic_ns();
    if (now >= warn_ns || now >= give_up_ns) {
      report_stall(now - begin_ns, now >= give_up_ns);
      warn_ns = after(now, options_.stall_warning_ns);
    }
  }
  flags.drivers.fetch_sub(1, std::memory_order_seq_cst);
  // A peer that went to sleep while this thread drove counted on it; now only the background
  // thread can act. (A peer announces its sleep before it looks at `drivers`: one of us sees.)
  // The same for frames that this rank carries to other hosts.
  if (oversleeps || (unfinished && peer_sleeps()) || frames_to_carry()) wake_own_background();
  const std::uint64_t spent = monotonic_ns() - begin_ns;
  const std::uint64_t moved = communicating_ns_.load(std::memory_order_relaxed) - moved_ns;
  waiting_ns_.fetch_add(spent > moved ? spent - moved : 0, std::memory_order_relaxed);
  for (const Handle& handle : handles) {
    if (!handle->status().ok()) return handle->status();
  }
  return {};
}

bool Engine::leave_to_background() {
  if (!options_.overlap || table_.empty()) return true;
  control_.flags(mesh_.self).background_listens.store(1, std::memory_order_seq_cst);
  return !run_cycle();  // what came before that rang nothing
}

// Called after `drivers` was lowered: whoever appended before saw that somebody drives, and woke
// nobody.
bool Engine::frames_to_carry() {
  if (one_host() || mesh_.self != 0) return false;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  bool found = false;
  {
    const MutexLock lock(seat_);
    found = log_.readable() || !carrier_->idle();
  }
  publish_leftovers();
  return found;
}

bool Engine::peer_sleeps() const {
  for (Rank rank = 0; rank < mesh_.size; ++rank) {
    if (rank != mesh_.self && control_.flags(rank).waiters.sleepers.load() != 0) return true;
  }
  return false;
}

Result<ArenaBuffer> Engine::allocate_arena(std::size_t bytes) {
  CIRANDA_TRY(usable());
  return segments_.allocate(bytes);
}

Result<ArenaBuffer> Engine::map_arena(int owner, const ArenaRef& ref, std::size_t bytes) {
  CIRANDA_TRY(usable());
  Result<std::byte*> place = nullptr;
  {
    const MutexLock seat(seat_);
    place = resolve_arena(owner, ref, bytes);
  }
  publish_leftovers();
  if (!place) return place.error();
  return ArenaBuffer{
      .ref = ref, .data = place.value(), .bytes = bytes, .lease = segments_.lease(owner, ref)};
}

EngineStats Engine::stats() const {
  return {.waiting_ns = waiting_ns_.load(std::memory_order_relaxed),
          .communicating_ns = communicating_ns_.load(std::memory_order_relaxed),
          .operations = operations_.load(std::memory_order_relaxed),
          .bytes = bytes_.load(std::memory_order_relaxed)};
}

std::vector<PendingOperation> Engine::pending() {
  if (forked_.load()) return {};
  std::vector<PendingOperation> pending;
  {
    const MutexLock lock(seat_);
    pending = failure_ ? pending_at_failure_ : pending_now();
  }
  publish_leftovers();
  return pending;
}

std::vector<PendingOperation> Engine::pending_now() {
  std::vector<PendingOperation> pending;
  const std::vector<StalledOp> waiting = negotiator_.waiting();
  for (const std::uint32_t token : table_.tokens()) {
    const Submission& submission = *table_.find(token);
    PendingOperation& operation = pending.emplace_back();
    operation.kind = submission.spec->kind;
    operation.name = submission.spec->name;
    for (const StalledOp& stalled : waiting) {
      if (stalled.spec->kind == operation.kind && stalled.spec->name == operation.name &&
          stalled.occurrence == submission.occurrence) {
        operation.missing = stalled.missing;
      }
    }
  }
  return pending;
}

void Engine::abort(const std::string& reason) {
  if (forked_.load() || stopping_.load()) return;
  {
    const MutexLock lock(seat_);
    fail({.code = ErrorCode::kRankLost, .text = reason, .rank = rank()});
  }
  publish_leftovers();
}

void Engine::shutdown() {
  const MutexLock once(shutdown_mutex_);
  if (shut_down_ || forked_.load()) return;
  shut_down_ = true;
  RankFlags& flags = control_.flags(mesh_.self);
  flags.drivers.fetch_add(1, std::memory_order_seq_cst);
  stopping_.store(true, std::memory_order_release);

  // What all ranks agreed to run is finished: the peers cannot do it without this rank.
  const std::uint64_t finish_by = monotonic_ns() + kShutdownFinishNs;
  for (bool idle = false; !idle && monotonic_ns() < finish_by;) {
    {
      const MutexLock lock(seat_);
      run_cycle();
      idle = failure_.has_value() || backends_.idle();
    }
    if (!idle) std::this_thread::yield();
  }
  {
    const MutexLock lock(seat_);
    if (!backends_.idle() && !failure_) {
      fail({.code = ErrorCode::kRankLeft,
            .text = "rank " + std::to_string(rank()) + " shut down in the middle of an operation",
            .rank = rank()});
    }
    queue_.close(shut_down_error());  // for those that asked usable() before
    finish_all({.code = ErrorCode::kShutdown,
                .text = "ciranda was shut down on this rank before the operation was done"});
    flags.waiters.ring();
  }
  // The log may be full of frames that a computing peer has not read.
  const std::uint64_t farewell_by = monotonic_ns() + (one_host() ? kFarewellNs : kFarewellFarNs);
  std::vector<std::byte> goodbye;
  encode({.kind = FrameKind::kLeave, .requests = {}}, goodbye);
  for (bool said = false; monotonic_ns() < farewell_by;) {
    const MutexLock lock(seat_);
    if (failure_) break;
    send_frames();
    said = said || (unsent_.empty() && append(goodbye));
    if (said && carried_everything()) break;
    read_log();
    advance_carrier();
    bells_.ring_all();
    for (Rank rank = 0; rank < mesh_.size; ++rank) {
      if (rank != mesh_.self && log_.lags_behind(rank)) bells_.call_on(rank);
    }
    std::this_thread::sleep_for(kFarewellPause);
  }
  {
    const MutexLock lock(seat_);
    log_.retire();
  }
  bells_.ring_all();

  wake_own_background();
  background_.join();
  for (LocalMesh::Peer& peer : mesh_.peers) peer.socket.reset();
  close_remote();
  flags.drivers.fetch_sub(1, std::memory_order_seq_cst);
  if (timeline_) {
    if (const Status written_out = timeline_->write(); !written_out && options_.warn) {
      options_.warn(written_out.error().text);
    }
  }
}

void Engine::after_fork_in_child() noexcept {
  forked_.store(true);
  // While a child holds these, the peers would not notice that the parent died.
  for (LocalMesh::Peer& peer : mesh_.peers) {
    peer.socket.reset();
    peer.doorbell.reset();
  }
  remote_.links.close_in_forked_child();
  if (carrier_) carrier_->close_all();
  epoll_.reset();
}

// -------------------------------------------------------------------------------------------
// Driving

bool Engine::drive(std::span<const Handle> handles) {
  std::uint64_t idle_since_ns = 0;
  for (;;) {
    while (!handles.empty() && handles.front()->done()) handles = handles.subspan(1);
    if (handles.empty()) return true;
    const bool moved = run_cycle();
    if (moved) {
      idle_since_ns = 0;
      continue;
    }
    if (options_.spin_ns == 0 || backends_.will_wake()) return false;
    relax_core();
    const std::uint64_t now = monotonic_ns();
    if (idle_since_ns == 0) idle_since_ns = now;
    if (now - idle_since_ns > options_.spin_ns) return false;
  }
}

void Engine::sleep_for_news(std::span<const Handle> handles, std::uint64_t until_ns) {
  Doorbell& bell = control_.flags(mesh_.self).waiters;
  const std::uint32_t ticket = bell.announce();
  std::vector<Rank> blockers;
  std::uint64_t look_again_ns = 0;
  bool news = false;
  {
    const MutexLock lock(seat_);
    news = run_cycle();
    blockers = blocked_on();
    look_again_ns = backends_.look_again_ns();
    arm_sockets();  // the seat is not taken again: what is submitted from here on is seen below
  }
  const bool done = std::all_of(handles.begin(), handles.end(),
                                [](const Handle& handle) { return handle->done(); });
  if (news || done || !queue_.empty()) {
    bell.withdraw();
    return;
  }
  for (const Rank rank : blockers) bells_.call_on(rank);
  const std::uint64_t now = monotonic_ns();
  std::uint64_t sleep_ns = std::min(until_ns > now ? until_ns - now : 1, kForEverNs);
  if (look_again_ns > 0) sleep_ns = std::min(sleep_ns, look_again_ns);
  bell.sleep(ticket, sleep_ns);
}

std::vector<Rank> Engine::blocked_on() {
  std::vector<Rank> blockers;
  backends_.blocked_on(blockers);
  if (!unsent_.empty() || (carrier_ && !carrier_->idle())) {
    for (Rank rank = 0; rank < mesh_.size; ++rank) {
      if (rank != mesh_.self && log_.lags_behind(rank)) blockers.push_back(rank);
    }
  }
  return blockers;
}

bool Engine::run_cycle() {
  if (failure_) return false;
  if (control_.failed()) {
    take_what_arrived();
    fail(control_.failure());
    return true;
  }
  bool moved = publish_submissions();
  moved = read_log() || moved;
  if (advance_carrier()) {
    moved = true;
    if (!failure_) read_log();
  }
  moved = advance_backends() || moved;
  if (moved) bells_.ring_all();
  if (std::exchange(finished_any_, false)) control_.flags(mesh_.self).waiters.ring();
  return moved;
}

bool Engine::publish_submissions() {
  if (queue_.empty() && unsent_.empty()) return false;
  if (failure_) {
    finish_all(*failure_);  // it failed between a submitter's check and its push
    control_.flags(mesh_.self).waiters.ring();
    return true;
  }
  queue_.drain_into(drained_);
  for (Submission& submission : drained_) {
    queue_request(table_.insert(std::move(submission)), /*in_full=*/false);
  }
  drained_.clear();
  return send_frames();
}

void Engine::queue_request(std::uint32_t token, bool in_full) {
  const Submission& submission = *table_.find(token);
  Request request;
  request.cache_id = in_full ? kNoCacheId : negotiator_.known(*submission.spec);
  if (request.cache_id == kNoCacheId) request.spec = *submission.spec;
  request.occurrence = submission.occurrence;
  request.contribution = {.token = token,
                          .rows = submission.rows,
                          .arena = submission.arena,
                          .digest = submission.digest};
  const std::size_t bytes = encoded_bytes(request);
  if (!frame_.requests.empty() && (frame_bytes_ + bytes > kFrameBytesMax / 2 ||
                                   frame_.requests.size() >= kRequestsPerFrameMax)) {
    send_frames();
  }
  frame_bytes_ += bytes;
  frame_.requests.push_back(std::move(request));
}

// Encodes what queue_request gathered and appends what the log has room for, in order.
bool Engine::send_frames() {
  bool sent = false;
  while (!unsent_.empty() && append(unsent_.front())) {
    unsent_.pop_front();
    sent = true;
  }
  if (!frame_.requests.empty()) {
    encoded_.clear();
    encode(frame_, encoded_);
    frame_.requests.clear();
    frame_bytes_ = 0;
    if (unsent_.empty() && append(encoded_)) {
      sent = true;
    } else {
      unsent_.push_back(encoded_);
    }
  }
  return sent;
}

// On one host the log is the order. On several it also takes frames to the host's first rank, which
// carries them to the order, and brings them back.
bool Engine::append(std::span<const std::byte> frame) {
  if (one_host()) return log_.try_append(frame);
  if (!carrier_) {
    if (!log_.try_append(frame, mesh_.self, /*ordered=*/false)) return false;
    std::atomic_thread_fence(std::memory_order_seq_cst);  // see frames_to_carry()
    bells_.call_on(0);
    return true;
  }
  carrier_->submit(rank(), frame, monotonic_ns());
  return true;
}

Carrier::Deliver Engine::into_log() {
  return [this](Rank from, std::span<const std::byte> frame) CIRANDA_ANNOTATION(
             no_thread_safety_analysis) { return log_.try_append(frame, from, /*ordered=*/true); };
}

bool Engine::advance_carrier() {
  if (!carrier_ || failure_) return false;
  const auto moved = carrier_->advance(into_log(), monotonic_ns(), !log_.readable());
  if (carrier_->told_failure()) {
    fail(*carrier_->told_failure());
    return true;
  }
  if (moved) return moved.value();
  host_closed(carrier_->lost_host(), moved.error());
  return true;
}

bool Engine::read_log() {
  bool moved = false;
  while (const auto entry = log_.next()) {
    moved = true;
    if (!entry->ordered) {
      if (kind_of(entry->frame) == FrameKind::kLeave) {
        leaving_[static_cast<std::size_t>(entry->from)] = true;
      }
      if (carrier_) carrier_->submit(global(entry->from), entry->frame, monotonic_ns());
      continue;
    }
    responses_.clear();
    const Status handled =
        negotiator_.handle_frame(entry->from, entry->frame, monotonic_ns(), responses_);
    if (!handled) {
      fail(handled.error());
      return true;
    }
    if (!responses_.empty()) handle_responses();
    if (failure_) return true;
  }
  return moved;
}

bool Engine::advance_backends() {
  if (backends_.resting()) return false;
  const std::uint64_t begin_ns = monotonic_ns();
  bool moved = backends_.advance();
  if (unannounced_) {
    service_peer(*std::exchange(unannounced_, std::nullopt));
    moved = true;
  }
  if (moved) {
    communicating_ns_.fetch_add(monotonic_ns() - begin_ns, std::memory_order_relaxed);
  }
  if (backends_.broken() != nullptr) fail(*backends_.broken());
  return moved;
}

// -------------------------------------------------------------------------------------------
// From responses to executions

void Engine::handle_responses() {
  for (const Response& response : responses_) {
    if (response.verdict == Response::Verdict::kResubmit) {
      if (response.resubmit_rank == rank() && table_.find(response.resubmit_token) != nullptr) {
        queue_request(response.resubmit_token, /*in_full=*/true);
      }
      continue;
    }
    const Contribution* own = contribution_of(response, rank());
    if (own == nullptr) continue;  // an error about something this rank has not submitted yet
    Submission* submission = table_.find(own->token);
    if (submission == nullptr) continue;  // shut down meanwhile
    if (timeline_) {
      submission->agreed_ns = monotonic_ns();
      timeline_->record("NEGOTIATE", submission->spec->name, submission->submitted_ns,
                        submission->agreed_ns);
    }
    if (response.verdict == Response::Verdict::kError) {
      finish(own->token, *response.error);
    } else if (response.spec->kind == OpKind::kBarrier) {
      finish(own->token, {});
    }
  }
  send_frames();  // what had to be sent again

  const std::vector<FusedOp> ops = plan_fusion(responses_, options_.fusion);
  for (const FusedOp& op : ops) {
    for (std::size_t i = 0; i < op.members.size(); ++i) {
      if (i > 0 && op.members[i].response == op.members[i - 1].response) continue;
      const Response& response = responses_[op.members[i].response];
      Submission* submission = table_.find(contribution_of(response, rank())->token);
      if (submission != nullptr) ++submission->parts_left;
    }
  }
  for (const FusedOp& op : ops) {
    if (const Status started = start_execution(op); !started) {
      fail(started.error());
      return;
    }
  }
}

Status Engine::start_execution(const FusedOp& op) {
  if (op.kind == OpKind::kBarrier) return {};
  Execution execution{.op = op};
  std::vector<std::uint32_t> tokens;
  for (const FusedOp::Member& member : op.members) {
    const Response& response = responses_[member.response];
    const std::uint32_t token = contribution_of(response, rank())->token;
    Submission* submission = table_.find(token);
    if (submission == nullptr) {
      return Error{.code = ErrorCode::kShutdown,
                   .text = "rank " + std::to_string(rank()) + " shut down in the middle of " +
                           describe(*response.spec),
                   .rank = rank()};
    }
    if (!tokens.empty() && tokens.back() == token && op.in_arena) continue;  // one bucket
    if (submission->device.stream) execution.device.push_back(submission->device);
    CIRANDA_TRY(op.in_arena ? locate_in_arena(response, *submission, execution)
                            : add_member_memory(response, member.tensor, rank(), size(),
                                                *submission, execution));
    if (tokens.empty() || tokens.back() != token) tokens.push_back(token);
  }
  execution.done = [this, tokens = std::move(tokens)](const Status& status,
                                                      const std::shared_ptr<DeviceEvent>& finished)
                       CIRANDA_ANNOTATION(no_thread_safety_analysis) {
                         for (const std::uint32_t token : tokens) {
                           Submission* submission = table_.find(token);
                           if (submission == nullptr) continue;
                           // The other parts use the user's memory still.
                           if (submission->outcome.ok() && !status.ok()) {
                             submission->outcome = about(status.error(), *submission->spec);
                           }
                           if (--submission->parts_left == 0) {
                             finish(token, Status(submission->outcome), finished);
                           }
                         }
                       };
  backends_.start(std::move(execution));
  return {};
}

Status Engine::locate_in_arena(const Response& response, Submission& submission,
                               Execution& execution) {
  execution.arena_bytes = submission.arena_bytes;
  execution.work = std::move(submission.work);
  for (int local = 0; local < mesh_.size; ++local) {
    const ArenaRef& ref = contribution_of(response, global(local))->arena;
    auto place = resolve_arena(local, ref, submission.arena_bytes);
    if (!place) return place.error();
    execution.arena.push_back(place.value());
  }
  return {};
}

// The owner announced the segment before it told of `ref`: at the latest it waits in the socket.
// That the owner has closed the socket since is for the background thread to see, after what is
// agreed.
Result<std::byte*> Engine::resolve_arena(int owner, const ArenaRef& ref, std::uint64_t bytes) {
  auto place = segments_.resolve(owner, ref, bytes);
  if (!place || place.value() != nullptr) return place;
  const Result<bool> open = receive_segments(owner);
  if (!open) return open.error();
  place = segments_.resolve(owner, ref, bytes);
  if (!place || place.value() != nullptr) return place;
  return Error{.code = ErrorCode::kMalformed,
               .text = "rank " + std::to_string(global(owner)) + " never announced arena segment " +
                       std::to_string(ref.segment),
               .rank = global(owner)};
}

HostMemory Engine::host_memory() {
  HostMemory memory;
  memory.allocate = [this](std::uint64_t bytes) -> Result<HostMemory::Stage> {
    auto buffer = segments_.allocate(bytes);
    if (!buffer) return buffer.error();
    return HostMemory::Stage{.ref = buffer.value().ref,
                             .data = buffer.value().data,
                             .bytes = buffer.value().bytes,
                             .lease = buffer.value().lease};
  };
  memory.resolve = [this](int owner, const ArenaRef& ref, std::uint64_t bytes)
                       CIRANDA_ANNOTATION(no_thread_safety_analysis) {
                         auto place = segments_.resolve(owner, ref, bytes);
                         if (place && place.value() == nullptr) unannounced_ = owner;
                         return place;
                       };
  return memory;
}

// A bell suffices while somebody waits; what nobody waits for is found by the next cycle.
BackendContext Engine::backend_context() {
  return {
      .rank = rank(),
      .size = size(),
      .local_rank = mesh_.self,
      .local_size = mesh_.size,
      .address = remote_.address,
      .exchange = [this](const std::string& name,
                         std::vector<std::byte> mine) { return exchange(name, std::move(mine)); },
      .wake =
          [this] {
            RankFlags& flags = control_.flags(mesh_.self);
            flags.waiters.ring();
            const bool driven = flags.drivers.load(std::memory_order_seq_cst) != 0;
            if (options_.overlap && !driven) wake_own_background();
          }};
}

std::unique_ptr<Exchange> Engine::exchange(const std::string& name, std::vector<std::byte> mine) {
  auto exchange = std::make_unique<SubmittedExchange>(std::move(mine));
  exchange->submit("ciranda.exchange." + name, queue_);
  return exchange;
}

void Engine::finish(std::uint32_t token, const Status& status,
                    const std::shared_ptr<DeviceEvent>& finished) {
  Submission& submission = *table_.find(token);
  if (timeline_ && submission.agreed_ns != 0) {
    timeline_->record(op_kind_name(submission.spec->kind), submission.spec->name,
                      submission.agreed_ns, monotonic_ns());
  }
  operations_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(payload_bytes(submission), std::memory_order_relaxed);
  const Handle handle = std::move(submission.handle);
  const auto spec = std::move(submission.spec);
  table_.erase(token);
  queue_.release(*spec);
  handle->complete(status, finished);
  finished_any_ = true;
}

void Engine::finish_all(const Error& why) {
  queue_.drain_into(drained_);
  for (Submission& submission : std::exchange(drained_, {})) table_.insert(std::move(submission));
  for (const std::uint32_t token : table_.tokens()) {
    finish(token, about(why, *table_.find(token)->spec));
  }
}

// -------------------------------------------------------------------------------------------
// Failure, peers, the background thread

void Engine::fail(const Error& why) {
  if (failure_) return;
  pending_at_failure_ = pending_now();
  failure_ = control_.fail(why);
  if (carrier_ && !carrier_->told_failure()) carrier_->tell_failure(*failure_);
  backends_.abort(*failure_);
  finish_all(*failure_);
  bells_.ring_alarm();
}

// What every rank contributed before one of them was lost is delivered, not failed.
void Engine::take_what_arrived() {
  read_log();
  if (!failure_) advance_backends();
}

Result<bool> Engine::receive_segments(int local) {
  const LocalMesh::Peer& peer = mesh_.peers[static_cast<std::size_t>(local)];
  while (peer.socket.valid()) {
    auto received = receive_message(peer.socket.get());
    if (!received && received.error().code == ErrorCode::kRankLost) return false;
    if (!received) {
      Error error = received.error();
      error.rank = global(local);
      return error;
    }
    if (!received.value()) return true;
    ReceivedMessage& message = *received.value();
    auto segment = MemorySegment::open(std::move(message.fd), message.message.bytes);
    if (!segment) return segment.error();
    CIRANDA_TRY(segments_.add(local, message.message.segment, std::move(segment).value()));
  }
  return true;
}

void Engine::service_peer(int local) {
  const Result<bool> open = receive_segments(local);
  if (!open) return fail(open.error());
  if (!open.value()) peer_closed(local);
}

bool Engine::departed(std::span<const Rank> ranks) const {
  const std::vector<Rank>& gone = negotiator_.departed();
  return std::all_of(ranks.begin(), ranks.end(), [&gone](Rank rank) {
    return std::find(gone.begin(), gone.end(), rank) != gone.end();
  });
}

void Engine::peer_closed(int local) {
  LocalMesh::Peer& peer = mesh_.peers[static_cast<std::size_t>(local)];
  const Rank rank = global(local);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer.socket.get(), nullptr);
  if (failure_) return;
  take_what_arrived();  // its goodbye, if there is one, came before it closed the socket
  if (failure_ || departed(rank) || leaving_[static_cast<std::size_t>(local)]) return;
  if (control_.failed()) return fail(control_.failure());
  fail({.code = ErrorCode::kRankLost,
        .text = "rank " + std::to_string(rank) + " (pid " + std::to_string(peer.pid) +
                ") was lost: it ended without shutting down",
        .rank = rank});
}

// The first rank of a host is gone, and nobody else carries its frames.
void Engine::host_closed(int host, const Error& why) {
  if (failure_) return;
  carrier_->take_last_words(host, into_log(), monotonic_ns());
  take_what_arrived();
  if (failure_) return;
  const std::vector<Rank>& ranks = remote_.hosts[static_cast<std::size_t>(host)];
  // Once rank 0 has left nothing can be agreed any more.
  const bool over = host == 0 && departed(ranks.front());
  if (over || departed(ranks)) return carrier_->part_with(host);
  if (control_.failed()) return fail(control_.failure());
  fail({.code = ErrorCode::kRankLost,
        .text = why.text + "; host " + std::to_string(host) + " is lost",
        .rank = ranks.front()});
}

// A host that is unplugged closes nothing.
void Engine::check_hosts_answer(std::uint64_t now_ns) {
  if (one_host() || failure_ || now_ns < next_look_ns_) return;
  next_look_ns_ = now_ns + kLookForAnswersMs * kMsInNs;
  const std::uint64_t limit_ms = options_.peer_timeout_ms + kLastAnswerMs;
  if (carrier_) {
    const Status answers = carrier_->check_answers(limit_ms);
    if (!answers) return host_closed(carrier_->lost_host(), answers.error());
  }
  remote_.links.each([&](const DataLink& link) CIRANDA_ANNOTATION(no_thread_safety_analysis) {
    if (failure_ || departed(link.peer)) return;
    const Status answers = check_answers(link.stream.fd(), limit_ms);
    if (answers) return;
    fail({.code = ErrorCode::kRankLost,
          .text = "rank " + std::to_string(link.peer) + " at " + link.address + ": " +
                  answers.error().text + "; host " + std::to_string(host_of(link.peer)) +
                  " is lost",
          .rank = link.peer});
  });
}

int Engine::host_of(Rank rank) const {
  const auto on = [rank](const std::vector<Rank>& ranks) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  };
  const auto host = std::find_if(remote_.hosts.begin(), remote_.hosts.end(), on);
  return static_cast<int>(host - remote_.hosts.begin());
}

void Engine::close_remote() {
  remote_.links.close_all();
  if (carrier_) carrier_->close_all();
}

// Peers must hear of a goodbye before they see the socket closed. Who puts it in order, or carries
// it there, may have left before.
bool Engine::carried_everything() const {
  if (one_host()) return true;
  if (carrier_) return carrier_->idle() && (carrier_->alone() || departed(local_ranks()));
  return departed(rank()) || departed(0) || departed(global(0));
}

void Engine::arm_sockets() {
  if (one_host() || failure_) return;
  disarm_sockets();
  if (carrier_) carrier_->watched(armed_);
  backends_.watched(armed_);
  for (const Watched& watched : armed_) {
    epoll_event event{};
    event.events =
        EPOLLONESHOT | (watched.readable ? EPOLLIN : 0u) | (watched.writable ? EPOLLOUT : 0u);
    event.data.u32 = kRemoteEvent;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, watched.socket, &event) != 0 && errno == EEXIST) {
      event.events = EPOLLONESHOT | EPOLLIN | EPOLLOUT;  // one socket, both directions
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, watched.socket, &event);
    }
  }
}

void Engine::disarm_sockets() {
  for (const Watched& watched : armed_) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, watched.socket, nullptr);
  }
  armed_.clear();
}

void Engine::background_loop() {
  const int own = mesh_.peers[static_cast<std::size_t>(mesh_.self)].doorbell.get();
  RankFlags& flags = control_.flags(mesh_.self);
  std::array<epoll_event, 16> events;
  int patience_ms = 0;  // patience_ms_, read without the seat
  while (!stopping_.load(std::memory_order_acquire)) {
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), patience_ms);
    std::uint64_t rings = 0;
    [[maybe_unused]] const ssize_t drained = ::read(own, &rings, sizeof rings);
    seat_.lock();
    for (int i = 0; i < count; ++i) {
      const std::uint32_t local = events[static_cast<std::size_t>(i)].data.u32;
      if (local == kRemoteEvent) continue;  // the cycle looks at them
      if (static_cast<int>(local) != mesh_.self) service_peer(static_cast<int>(local));
    }
    // Drive until nothing moves for a while, or until a user's thread wants the seat.
    std::uint64_t idle_since_ns = monotonic_ns();
    check_hosts_answer(idle_since_ns);
    while (seat_wanted_.load(std::memory_order_relaxed) == 0) {
      if (options_.overlap) flags.background_listens.store(0, std::memory_order_relaxed);
      if (run_cycle()) {
        idle_since_ns = monotonic_ns();
        continue;
      }
      const bool unfinished = !backends_.idle() && !backends_.will_wake();
      if (unfinished && monotonic_ns() - idle_since_ns < options_.spin_ns) {
        relax_core();
        continue;
      }
      if (!options_.overlap) break;
      flags.background_listens.store(1, std::memory_order_seq_cst);
      if (!run_cycle()) break;  // asked for news; none came in between
    }
    patience_ms = patience_ms_ = look_again_ms();
    arm_sockets();
    seat_.unlock();
    publish_leftovers();
  }
}

// How long the background thread may sleep although nobody calls it; -1: for ever.
int Engine::look_again_ms() const {
  const auto backends_ms = static_cast<int>((backends_.look_again_ns() + kMsInNs - 1) / kMsInNs);
  if (one_host()) return backends_ms > 0 ? backends_ms : -1;
  return backends_ms > 0 ? std::min(backends_ms, kLookForAnswersMs) : kLookForAnswersMs;
}

void Engine::report_stall(std::uint64_t waited_ns, bool give_up) {
  std::optional<std::string> report;
  {
    const MutexLock lock(seat_);
    if (failure_) return;
    // What was to be joined is known to all, and counted from, when the first ranks of the hosts
    // have lost patience.
    const std::uint64_t held_ns = one_host() ? 0 : 3 * patience_ns();
    const std::uint64_t limit_ns = give_up ? options_.stall_shutdown_ns : options_.stall_warning_ns;
    report = stall_report(negotiator_.waiting(), monotonic_ns(),
                          limit_ns - std::min(limit_ns, held_ns), kSecondNs);
    if (give_up) {
      fail({.code = ErrorCode::kTimeout,
            .text = "stalled for " + std::to_string(waited_ns / kSecondNs) + " s; " +
                    report.value_or("an operation that all ranks submitted does not end")});
    }
  }
  if (report && options_.warn && options_.stall_warning_ns > 0) options_.warn(*report);
}

}  // namespace ciranda
