#include "core/service/server.h"

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
#include <utility>

#include "core/base/clock.h"
#include "core/transport/socket_io.h"

namespace ciranda::ps {
namespace {

constexpr int kEventsAtOnce = 64;

std::size_t whole_pages(std::uint64_t bytes) {
  constexpr std::uint64_t kPageBytes = 4096;
  return static_cast<std::size_t>((bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
}

// The first of the memfds that came with a packet.
Result<MemorySegment> take_memory(std::vector<Fd>& fds, std::uint64_t bytes) {
  if (fds.empty()) {
    return Error{.code = ErrorCode::kMalformed, .text = "a message came without its memory"};
  }
  Fd fd = std::move(fds.front());
  fds.erase(fds.begin());
  return MemorySegment::open(std::move(fd), whole_pages(bytes));
}

// Linux 6.12 or later lets a thread that asks for short slices run as soon as it wakes, where one
// that computes has the core; without, a push may wait for the end of a worker's slice, of
// milliseconds. A wish: where it is not granted, servers work all the same.
void wish_to_run_once_awake() {
  struct {  // sched_attr, which not every C library has
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

Server::Server(const std::string& job_folder, const DeskOptions& options)
    : desk_(options),
      folder_(folder_of_server(job_folder, options.server), options.job_id,
              "server " + std::to_string(options.server)),
      workers_(options.workers),
      packet_(kPacketBytesMax) {}

Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::start(const std::string& job_folder,
                                              const DeskOptions& options) {
  std::unique_ptr<Server> server(new Server(job_folder, options));
  CIRANDA_TRY(server->listen());
  return server;
}

Status Server::listen() {
  stop_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!stop_.valid() || !epoll_.valid()) return Error::from_errno("epoll_create1", errno);
  CIRANDA_TRY(folder_.listen(workers_));
  CIRANDA_TRY(watch(stop_.get()));
  return watch(folder_.listener());
}

Status Server::watch(int descriptor) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = descriptor;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0) return {};
  return Error::from_errno("epoll_ctl", errno);
}

void Server::stop() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
}

Status Server::run() {
  while (!desk_.all_have_left()) {
    std::array<epoll_event, kEventsAtOnce> events;
    const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsAtOnce,
                                   poll_timeout_ms(desk_.next_lease_ns()));
    if (count < 0 && errno != EINTR) return Error::from_errno("epoll_wait", errno);
    turn_ns_ = monotonic_ns();
    for (int i = 0; i < count; ++i) {
      const int descriptor = events[static_cast<std::size_t>(i)].data.fd;
      if (descriptor == stop_.get()) return {};
      if (descriptor == folder_.listener()) {
        CIRANDA_TRY(accept_all());
      } else {
        read_from(descriptor);
      }
    }
    desk_.end_leases(monotonic_ns(), answers_);
    carry_out();
  }
  return {};
}

Status Server::accept_all() {
  for (;;) {
    Fd socket(::accept4(folder_.listener(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) return {};  // or a caller that is gone, or no descriptors: it calls again
    const int number = socket.get();
    CIRANDA_TRY(watch(number));
    connections_[number] = {.socket = std::move(socket), .memory = {}, .gradients = {}};
    desk_.open(number, turn_ns_);
  }
}

void Server::read_from(int socket) {
  if (!connections_.contains(socket)) return;  // closed in this turn
  auto packet = receive_packet(socket, packet_);
  if (packet && packet.value().what == Received::kNothing) return;
  if (!packet || packet.value().what == Received::kClosed) {
    desk_.close(socket, turn_ns_, answers_);
    connections_.erase(socket);
    return carry_out();
  }
  const std::uint64_t begin_ns = monotonic_ns();
  oldest_ns_ = std::max(oldest_ns_, begin_ns - turn_ns_);
  auto message = decode_message(std::span(packet_).first(packet.value().bytes));
  if (message) {
    take(socket, std::move(message).value(), std::move(packet.value().fds));
  } else {
    desk_.refuse(socket, message.error(), turn_ns_, answers_);
  }
  carry_out();
  busy_ns_ += monotonic_ns() - begin_ns;
}

void Server::take(int socket, Message message, std::vector<Fd> fds) {
  const bool declares = std::holds_alternative<Declare>(message);
  const bool moves = std::holds_alternative<MoveGradients>(message);
  MemorySegment fetched;
  const Desk::Attached attached{
      .letter = [&](std::uint64_t bytes) -> Result<std::vector<std::byte>> {
        const auto letter = take_memory(fds, bytes);
        if (!letter) return letter.error();
        const std::byte* begin = letter.value().data();
        return std::vector<std::byte>(begin, begin + bytes);
      },
      .memory = [&](std::uint64_t bytes) -> Result<std::byte*> {
        auto memory = take_memory(fds, bytes);
        if (!memory) return memory.error();
        Connection& connection = connections_.at(socket);
        MemorySegment& kept = declares ? connection.memory : moves ? connection.gradients : fetched;
        kept = std::move(memory).value();
        return kept.data();
      }};
  desk_.take(socket, std::move(message), attached, turn_ns_, answers_);
  // In a round only the last push has somebody waiting for it, and the others interrupt for
  // nothing.
  if (declares && desk_.shard() != nullptr && desk_.shard()->model().mode.kind != ModeKind::kSync) {
    wish_to_run_once_awake();
  }
}

void Server::carry_out() {
  for (Desk::Answer& answer : answers_) {
    if (auto* stats = std::get_if<Stats>(&answer.message)) add_times(*stats);
    send(answer.to, answer.message);
    if (answer.hangs_up) connections_.erase(answer.to);
  }
  answers_.clear();
}

// Never waits: read_from() finds the socket of who does not read its answers shut.
void Server::send(int socket, const Message& message) {
  if (!connections_.contains(socket)) return;
  encoded_.clear();
  encode(message, encoded_);
  ssize_t sent = 0;
  do {
    sent = ::send(socket, encoded_.data(), encoded_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) ::shutdown(socket, SHUT_RDWR);
}

Stats Server::stats() const {
  Stats stats = desk_.stats();
  add_times(stats);
  return stats;
}

void Server::add_times(Stats& stats) const {
  stats.busy_ns = busy_ns_;
  stats.oldest_ns = oldest_ns_;
}

}  // namespace ciranda::ps
