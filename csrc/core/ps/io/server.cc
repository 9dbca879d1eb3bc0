#include "core/ps/io/server.h"

#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/ps/io/checkpoint_reader.h"
#include "core/transport/local/job_folder.h"
#include "core/transport/tcp/socket_io.h"
#include "core/transport/tcp/tcp.h"

namespace ciranda::ps {
namespace {

constexpr int kEventsAtOnce = 64;
// Numbers that epoll returns for descriptors other than connections.
constexpr ServerProtocol::Caller kStop = 0;
constexpr ServerProtocol::Caller kHere = 1;
constexpr ServerProtocol::Caller kElsewhere = 2;
constexpr ServerProtocol::Caller kFirstCaller = 3;

// How long accepting pauses when no descriptor is left.
constexpr std::uint64_t kAcceptPauseNs = 100'000'000;

// Reads and discards what has arrived; returns false at the end. Closing a socket with unread bytes
// would make the kernel drop what the peer has not read yet.
bool throw_away(int socket) {
  std::array<std::byte, 16'384> bytes;
  for (;;) {
    const ssize_t count = ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count == 0) return false;
    if (count < 0 && errno != EINTR) return errno == EAGAIN || errno == EWOULDBLOCK;
  }
}

// Asks the scheduler for short slices. From Linux 6.12 on, such a thread preempts a computing one
// as soon as it wakes. Otherwise a push may wait for the end of a worker's slice, which takes
// milliseconds. Failure is ignored: servers work all the same.
void wish_to_run_once_awake() {
  struct {  // sched_attr, which some C libraries lack
    std::uint32_t size = 48;
    std::uint32_t policy = SCHED_OTHER;
    std::uint64_t flags = 0;
    std::int32_t nice = ::getpriority(PRIO_PROCESS, 0);
    std::uint32_t priority = 0;
    std::uint64_t runtime_ns = 100'000;  // the shortest slice
    std::uint64_t deadline_ns = 0;
    std::uint64_t period_ns = 0;
  } wish;
  static_assert(sizeof wish == 48);
  if (::sched_getscheduler(0) == SCHED_OTHER) ::syscall(SYS_sched_setattr, 0, &wish, 0);
}

}  // namespace

std::string folder_of_server(const std::string& job_folder, int server) {
  return job_folder + "/ps" + std::to_string(server);
}

Server::Server(ServerOptions options)
    : options_(std::move(options)),
      protocol_(options_.protocol),
      next_caller_(kFirstCaller),
      notice_("ciranda-ps: server " + std::to_string(options_.protocol.server)) {}

Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::start(ServerOptions options) {
  options.protocol.keeps_state = options.state.has_value();
  std::unique_ptr<Server> server(new Server(std::move(options)));
  CIRANDA_TRY(server->find_state());
  CIRANDA_TRY(server->listen());
  return server;
}

Status Server::find_state() {
  const ServerProtocolOptions& protocol = options_.protocol;
  if (options_.state) {
    auto files = StateFiles::open(*options_.state, protocol_, monotonic_ns());
    if (!files) return files.error();
    files_ = std::move(files).value();
    found_ = files_->found();
  }
  if (options_.state && protocol.resumes && found_.empty()) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .text = "there is no state to resume in " + options_.state->folder +
                         ": a job leaves no state if it has ended or has no parameters yet; start "
                         "this job without --resume"};
  }
  CheckpointFiles::Origin origin{.job = files_ ? files_->job() : ""};
  if (!options_.restored.empty() && found_.empty()) {
    const auto checkpoint = CheckpointReader::open(options_.restored);
    if (!checkpoint) return checkpoint.error();
    auto share = checkpoint.value().share(protocol.server, protocol.servers, protocol.workers);
    if (!share) return share.error();
    protocol_.adopt(std::move(share).value());
    origin.restored = checkpoint.value().folder();
    found_ = "the checkpoint " + origin.restored;
  }
  if (options_.checkpoints.empty()) return {};
  auto checkpoints = CheckpointFiles::open(options_.checkpoints, protocol_, protocol, origin);
  if (!checkpoints) return checkpoints.error();
  checkpoints_ = std::move(checkpoints).value();
  return {};
}

Status Server::listen() {
  const ServerProtocolOptions& protocol = options_.protocol;
  stop_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!stop_.valid() || !epoll_.valid()) return Error::from_errno("epoll_create1", errno);
  CIRANDA_TRY(watch(stop_.get(), kStop));
  if (!options_.job_folder.empty()) {
    folder_ =
        std::make_unique<JobFolder>(folder_of_server(options_.job_folder, protocol.server),
                                    protocol.job_id, "server " + std::to_string(protocol.server));
    CIRANDA_TRY(folder_->listen(protocol.workers));
    CIRANDA_TRY(watch(folder_->listener(), kHere));
  }
  if (options_.listeners.empty()) return {};
  auto acceptor = Acceptor::create(std::move(options_.listeners), *options_.keys,
                                   {.self = protocol.server, .incarnation = 1, .is_server = true});
  if (!acceptor) return acceptor.error();
  acceptor_.emplace(std::move(acceptor).value());
  return watch(acceptor_->fd(), kElsewhere);
}

Status Server::watch(int descriptor, std::uint64_t number) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = number}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0) return {};
  return Error::from_errno("epoll_ctl", errno);
}

void Server::stop() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
}

std::uint64_t Server::next_deadline_ns() const {
  std::uint64_t next_ns = protocol_.next_lease_ns();
  if (awaits_ns_) next_ns = std::min(next_ns, notice_.due_ns(*awaits_ns_));
  if (files_) next_ns = std::min(next_ns, files_->next_deadline_ns());
  if (checkpoints_) next_ns = std::min(next_ns, checkpoints_->next_deadline_ns());
  if (acceptor_) next_ns = std::min(next_ns, acceptor_->next_deadline_ns().value_or(kNever));
  for (const auto& [caller, connection] : connections_) {
    next_ns = std::min(next_ns, connection.ends_ns);
  }
  return std::min(next_ns, accepts_again_ns_);
}

Status Server::run() {
  while (!protocol_.all_have_left()) {
    std::array<epoll_event, kEventsAtOnce> events;
    const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsAtOnce,
                                   poll_timeout_ms(next_deadline_ns()));
    if (count < 0 && errno != EINTR) return Error::from_errno("epoll_wait", errno);
    turn_ns_ = monotonic_ns();
    bool called = false;
    bool stops = false;
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      const auto caller = static_cast<ServerProtocol::Caller>(event.data.u64);
      if (caller == kStop) {
        stops = true;
      } else if (caller == kHere) {
        CIRANDA_TRY(accept_here());
      } else if (caller == kElsewhere) {
        called = true;
      } else {
        serve(caller, (event.events & EPOLLOUT) != 0);
      }
    }
    if (called || (acceptor_ && acceptor_->next_deadline_ns().value_or(kNever) <= turn_ns_)) {
      CIRANDA_TRY(accept_from_elsewhere());
    }
    refuse_who_stays_out();
    accept_again();
    protocol_.end_leases(monotonic_ns(), answers_);
    if (files_) files_->tend(monotonic_ns());
    CIRANDA_TRY(carry_out());
    report_losses();
    report_waits();
    if (checkpoints_) checkpoints_->tend(monotonic_ns());
    end_farewells();
    // If all workers have left in this turn, the server ends as usual in spite of stop().
    if (stops && !protocol_.all_have_left()) {
      is_stopped_ = true;
      return files_ ? files_->finish() : Status();
    }
  }
  connections_.clear();  // workers that leave wait for that
  if (checkpoints_) end_checkpoints();
  if (files_) files_->discard();
  return {};
}

// Makes the last checkpoint and blocks until it is done. It ignores stop(), so that the training is
// not lost.
void Server::end_checkpoints() {
  CIRANDA_ASSERT(checkpoints_ && protocol_.all_have_left());
  protocol_.end_checkpoints();
  for (;;) {
    checkpoints_->tend(monotonic_ns());
    if (checkpoints_->done()) return;
    ::poll(nullptr, 0, poll_timeout_ms(checkpoints_->next_deadline_ns()));
  }
}

// -------------------------------------------------------------------------------------------
// Connections

Status Server::accept_here() {
  CIRANDA_ASSERT(folder_);
  for (;;) {
    Fd socket(::accept4(folder_->listener(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      const bool is_full = errno == EMFILE || errno == ENFILE;
      return is_full ? pause_accepting() : Status();  // or a caller that gave up: it calls again
    }
    if (const auto user = same_user_pid(socket.get()); !user) {
      CIRANDA_TRY(turn_away(make_local_link(std::move(socket)), user.error()));
      continue;
    }
    CIRANDA_TRY(take_in(make_local_link(std::move(socket))));
  }
}

// Refuses a caller, but keeps its connection for a while: a caller that sends to a closed socket
// would lose the reason before reading it.
Status Server::turn_away(std::unique_ptr<WorkerLink> link, const Error& why) {
  const ServerProtocol::Caller caller = next_caller_++;
  CIRANDA_TRY(watch(link->watched().socket, static_cast<std::uint64_t>(caller)));
  connections_[caller] = {.link = std::move(link)};
  protocol_.refuse(caller, why, turn_ns_, answers_);
  answer_at_once();
  return {};
}

// Ignores the listener for a while. Callers stay in its queue, which epoll would report again at
// once.
Status Server::pause_accepting() {
  if (!std::exchange(was_full_, true)) {
    std::fprintf(stderr,
                 "ciranda-ps: server %d has no descriptor left for another worker; raise ulimit "
                 "-n\n",
                 options_.protocol.server);
  }
  accepts_again_ns_ = turn_ns_ + kAcceptPauseNs;
  epoll_event nothing{.events = 0, .data = {.u64 = kHere}};
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, folder_->listener(), &nothing);
  return {};
}

void Server::accept_again() {
  if (turn_ns_ < accepts_again_ns_) return;
  CIRANDA_ASSERT(folder_);  // by pause_accepting()
  accepts_again_ns_ = kNever;
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kHere}};
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, folder_->listener(), &event);
}

// While accepting is paused, refuses connections without a first message in time: other callers
// wait for their descriptors.
void Server::refuse_who_stays_out() {
  if (accepts_again_ns_ == kNever) return;
  for (auto& [caller, connection] : connections_) {
    if (turn_ns_ < connection.enters_by_ns) continue;
    connection.enters_by_ns = kNever;
    protocol_.refuse(caller,
                     {.code = ErrorCode::kTimeout,
                      .text = "a worker has connected but not entered the job, and no file "
                              "descriptor is left for other workers; raise ulimit -n"},
                     turn_ns_, answers_);
  }
}

Status Server::accept_from_elsewhere() {
  CIRANDA_ASSERT(acceptor_);
  auto proven = acceptor_->poll(turn_ns_);
  if (!proven) return proven.error();
  for (ProvenSocket& socket : proven.value()) {
    (void)pace_when_far(socket.stream.fd());
    CIRANDA_TRY(take_in(make_remote_link(std::move(socket), options_.protocol.server,
                                         options_.protocol.servers, options_.authenticates)));
  }
  if (const auto summary = acceptor_->summary(turn_ns_)) {
    std::fprintf(stderr, "ciranda-ps: %s\n", summary->c_str());
  }
  return {};
}

Status Server::take_in(std::unique_ptr<WorkerLink> link) {
  const ServerProtocol::Caller caller = next_caller_++;
  CIRANDA_TRY(watch(link->watched().socket, static_cast<std::uint64_t>(caller)));
  connections_[caller] = {.link = std::move(link), .enters_by_ns = turn_ns_ + options_.entry_ns};
  protocol_.open(caller);
  read_from(caller);
  return {};
}

void Server::serve(ServerProtocol::Caller caller, bool has_room) {
  const auto found = connections_.find(caller);
  if (found == connections_.end()) return;  // closed earlier in this turn
  if (has_room && !found->second.link->flush()) {
    protocol_.close(caller, turn_ns_, answers_);
    connections_.erase(caller);
    return answer_at_once();
  }
  watch_room(caller, found->second);
  read_from(caller);
}

void Server::read_from(ServerProtocol::Caller caller) {
  Connection& connection = connections_.at(caller);
  while (take_next(caller, connection) && connections_.contains(caller) &&
         connection.link->is_remote()) {
    // Answer first: the next message may fetch into the same memory.
    if (files_) failed_ = carry_out();
  }
}

// Handles the connection's next message; returns false if no message has arrived.
bool Server::take_next(ServerProtocol::Caller caller, Connection& connection) {
  if (connection.ends_ns != kNever) {
    if (!throw_away(connection.link->watched().socket)) connections_.erase(caller);
    return false;
  }
  auto message = connection.link->receive();
  if (message && !message.value()) return false;
  if (!message && message.error().code == ErrorCode::kRankLost) {
    protocol_.close(caller, turn_ns_, answers_);
    connections_.erase(caller);
    answer_at_once();
    return false;
  }
  connection.enters_by_ns = kNever;
  const std::uint64_t begin_ns = monotonic_ns();
  oldest_ns_ = std::max(oldest_ns_, begin_ns - turn_ns_);
  if (message) {
    const bool declares = std::holds_alternative<Declare>(*message.value());
    protocol_.take(caller, std::move(*message.value()), connection.link->attached(), turn_ns_,
                   answers_);
    // Not for kSync: workers wait only for a round's last push, and the earlier ones would preempt
    // workers for nothing.
    if (declares && protocol_.shard() != nullptr &&
        protocol_.shard()->model().mode.kind != ModeKind::kSync) {
      wish_to_run_once_awake();
    }
  } else {
    protocol_.refuse(caller, message.error(), turn_ns_, answers_);
  }
  answer_at_once();
  busy_ns_ += monotonic_ns() - begin_ns;
  return true;
}

}  // namespace ciranda::ps
