#include "core/service/server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/clock.h"
#include "core/transport/socket_io.h"

namespace ciranda::ps {
namespace {

constexpr int kEventsAtOnce = 64;
constexpr std::size_t kAveragesMax = 1024;  // names

std::size_t whole_pages(std::uint64_t bytes) {
  constexpr std::uint64_t kPageBytes = 4096;
  return static_cast<std::size_t>((bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
}

Error refused(ErrorCode code, std::string why) {
  return {.code = code, .text = std::move(why)};
}

std::string words_of(Worker worker) {
  return "worker " + std::to_string(worker);
}

}  // namespace

std::string folder_of_server(const std::string& job_folder, int server) {
  return job_folder + "/ps" + std::to_string(server);
}

Server::Server(ServerOptions options)
    : options_(std::move(options)),
      folder_(folder_of_server(options_.folder, options_.server), options_.job_id,
              "server " + std::to_string(options_.server)),
      members_(static_cast<std::size_t>(options_.workers)),
      packet_(kPacketBytesMax) {}

Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::start(ServerOptions options) {
  std::unique_ptr<Server> server(new Server(std::move(options)));
  CIRANDA_TRY(server->listen());
  return server;
}

Status Server::listen() {
  stop_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!stop_.valid() || !epoll_.valid()) return Error::from_errno("epoll_create1", errno);
  CIRANDA_TRY(folder_.listen(options_.workers));
  for (const int descriptor : {stop_.get(), folder_.listener()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = descriptor;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
      return Error::from_errno("epoll_ctl", errno);
    }
  }
  return {};
}

void Server::stop() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
}

Status Server::run() {
  for (;;) {
    std::array<epoll_event, kEventsAtOnce> events;
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), kEventsAtOnce, poll_timeout_ms(next_lease_ns()));
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
    end_leases();
    if (all_have_left()) return {};
  }
}

// -------------------------------------------------------------------------------------------
// Connections

Status Server::accept_all() {
  for (;;) {
    Fd socket(::accept4(folder_.listener(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      // Of a caller that is gone, or for lack of descriptors: it calls again, or is refused then.
      return {};
    }
    const int descriptor = socket.get();
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = descriptor;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
      return Error::from_errno("epoll_ctl", errno);
    }
    connections_[descriptor] = {.socket = std::move(socket), .heard_ns = turn_ns_};
  }
}

void Server::read_from(int socket) {
  if (!connections_.contains(socket)) return;  // closed in this turn
  auto packet = receive_packet(socket, packet_);
  if (!packet || packet.value().what == Received::kClosed) return close(socket, /*left=*/false);
  if (packet.value().what == Received::kNothing) return;
  Connection& connection = of(socket);
  hear(connection);
  const std::uint64_t begin_ns = monotonic_ns();
  oldest_ns_ = std::max(oldest_ns_, begin_ns - turn_ns_);
  const Status taken = take(connection, std::span(packet_).first(packet.value().bytes),
                            std::move(packet.value().fds));
  busy_ns_ += monotonic_ns() - begin_ns;
  if (taken) return;
  send(socket, Refused{.code = taken.error().code, .text = taken.error().text});
  close(socket, /*left=*/false);
}

Status Server::take(Connection& connection, Bytes packet, std::vector<Fd> fds) {
  auto decoded = decode_message(packet);
  if (!decoded) return decoded.error();
  Message message = std::move(decoded).value();
  if (const auto* first = std::get_if<Enter>(&message)) return enter(connection, *first);
  if (connection.worker < 0) {
    return refused(ErrorCode::kMalformed, "the first packet of a connection has to be Enter");
  }
  if (std::holds_alternative<Beat>(message)) return {};
  if (std::holds_alternative<Leave>(message)) {
    close(connection.socket.get(), /*left=*/true);
    return {};
  }
  if (std::holds_alternative<AskStats>(message)) return answer(connection, stats());
  if (const auto* given = std::get_if<Average>(&message)) {
    if (!averages_.contains(given->name) && averages_.size() >= kAveragesMax) {
      return refused(ErrorCode::kLimit,
                     "averages of more than " + std::to_string(kAveragesMax) + " names");
    }
    auto& latest = averages_[given->name].latest;
    latest[connection.worker] = given->value;
    Averaged averaged{.mean = 0.0, .workers = static_cast<std::uint32_t>(latest.size())};
    for (const auto& [worker, value] : latest) averaged.mean += value;
    averaged.mean /= static_cast<double>(latest.size());
    return answer(connection, averaged);
  }
  if (const auto* what = std::get_if<Declare>(&message)) {
    return declare(connection, *what, std::move(fds));
  }
  if (!shard_ || connection.memory.data() == nullptr || connection.waits) {
    return refused(ErrorCode::kMalformed,
                   words_of(connection.worker) + " has not declared its parameters");
  }
  if (auto* gradients = std::get_if<Push>(&message)) return push(connection, std::move(*gradients));
  if (std::holds_alternative<Pull>(message)) {
    return answer(connection, Ready{.version = shard_->pull(connection.worker)});
  }
  if (const auto* wanted = std::get_if<FetchState>(&message)) {
    const auto& tables = shard_->model().tables;
    if (wanted->table >= tables.size() ||
        wanted->array >= kernels::state_arrays(tables[wanted->table].rule).size()) {
      return refused(ErrorCode::kMalformed, "there is no such state");
    }
    const auto elements = static_cast<std::size_t>(shard_->layout().elements(wanted->table));
    return fetch(connection, elements * dtype_bytes(tables[wanted->table].dtype), std::move(fds),
                 [&](std::byte* into) { shard_->copy_state(wanted->table, wanted->array, into); });
  }
  if (std::holds_alternative<FetchSteps>(message)) {
    const std::span<const std::int64_t> steps = shard_->steps();
    return fetch(connection, steps.size_bytes(), std::move(fds),
                 [&](std::byte* into) { std::memcpy(into, steps.data(), steps.size_bytes()); });
  }
  return refused(ErrorCode::kMalformed, "a worker sent what only servers send");
}

template <typename Fn>
Status Server::fetch(Connection& connection, std::size_t bytes, std::vector<Fd> fds, Fn fill) {
  if (fds.size() != 1) {
    return refused(ErrorCode::kMalformed, words_of(connection.worker) + " sent no memory");
  }
  auto memory = MemorySegment::open(std::move(fds[0]), whole_pages(bytes));
  if (!memory) return memory.error();
  fill(memory.value().data());
  return answer(connection, Fetched{});
}

Status Server::answer(Connection& connection, const Message& message) {
  send(connection.socket.get(), message);
  return {};
}

// Never waits: who does not read its answers is cut off.
void Server::send(int socket, const Message& message) {
  encoded_.clear();
  encode(message, encoded_);
  ssize_t sent = 0;
  do {
    sent = ::send(socket, encoded_.data(), encoded_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) ::shutdown(socket, SHUT_RDWR);  // read_from() finds it closed
}

void Server::send_acks(const std::vector<Ack>& acks) {
  for (const Ack& ack : acks) {
    if (const int socket = member(ack.worker).connection; socket >= 0) send(socket, ack);
  }
}

void Server::close(int socket, bool left) {
  const auto found = connections_.find(socket);
  Connection connection = std::move(found->second);
  connections_.erase(found);
  if (connection.worker < 0) return;
  Member& gone = member(connection.worker);
  gone.connection = -1;
  gone.left = left;
  if (!shard_) return;
  std::vector<Ack> acks;
  shard_->leave(connection.worker, acks);
  send_acks(acks);
}

// -------------------------------------------------------------------------------------------
// Who is here

Status Server::enter(Connection& connection, const Enter& message) {
  const auto mismatch = [](const std::string& why) { return refused(ErrorCode::kMismatch, why); };
  const std::string self = words_of(message.worker);
  if (connection.worker >= 0) return refused(ErrorCode::kMalformed, self + " enters twice");
  if (message.version != kProtocolVersion) {
    return mismatch(self + " speaks version " + std::to_string(message.version) +
                    " of the servers' protocol, server " + std::to_string(options_.server) +
                    " version " + std::to_string(kProtocolVersion) +
                    "; install the same ciranda for both");
  }
  if (message.job_id != options_.job_id) {
    return mismatch(self + " is of job '" + message.job_id + "', server " +
                    std::to_string(options_.server) + " of job '" + options_.job_id + "'");
  }
  if (message.server != options_.server || message.servers != options_.servers ||
      message.workers != options_.workers) {
    return mismatch(self + " was told of " + std::to_string(message.workers) + " workers and " +
                    std::to_string(message.servers) + " servers, server " +
                    std::to_string(options_.server) + " of " + std::to_string(options_.workers) +
                    " and " + std::to_string(options_.servers));
  }
  if (message.worker >= options_.workers) {
    return mismatch("there is no " + self + ", only 0 to " + std::to_string(options_.workers - 1));
  }
  Member& own = member(message.worker);
  if (message.life <= own.life) {
    return refused(ErrorCode::kInvalidArgument,
                   self + (message.life == own.life
                               ? " is there already; give each process a number of its own"
                               : " has been started anew since this process was"));
  }
  if (own.connection >= 0) close(own.connection, /*left=*/false);  // of the life before
  own = {.life = message.life, .connection = connection.socket.get(), .left = false};
  connection.worker = message.worker;
  return answer(connection, Welcome{.decided = shard_ ? shard_->decided(message.worker) : 0});
}

Status Server::declare(Connection& connection, const Declare& message, std::vector<Fd> fds) {
  const std::string self = words_of(connection.worker);
  if (connection.memory.data() != nullptr) {
    return refused(ErrorCode::kInvalidArgument,
                   self + " has declared its parameters already; servers hold those of one model");
  }
  if (fds.size() != 2) return refused(ErrorCode::kMalformed, self + " sent no memory");
  auto letter = MemorySegment::open(std::move(fds[0]), whole_pages(message.model_bytes));
  if (!letter) return letter.error();
  // A copy, as the worker may write to it.
  const Bytes shared(letter.value().data(), static_cast<std::size_t>(message.model_bytes));
  const std::vector<std::byte> bytes(shared.begin(), shared.end());
  auto model = decode_model(bytes);
  if (!model) return model.error();
  if (shard_) {
    const std::string why = difference(shard_->model(), model.value());
    if (!why.empty()) {
      return refused(ErrorCode::kMismatch,
                     self + " trains something else than those before it: " + why);
    }
  } else {
    shard_ = std::make_unique<Shard>(std::move(model).value(), options_.servers, options_.server,
                                     options_.workers);
  }
  auto memory = MemorySegment::open(std::move(fds[1]), shard_->layout().memory_bytes());
  if (!memory) return memory.error();
  connection.memory = std::move(memory).value();
  connection.waits = true;
  shard_->enter(connection.worker, connection.memory.data(), message.decided);
  give_if_there();
  return {};
}

// The first parameters are those of the lowest worker that has not left.
void Server::give_if_there() {
  if (!shard_->given()) {
    const auto giver = std::find_if(members_.begin(), members_.end(),
                                    [](const Member& each) { return !each.left; });
    if (giver == members_.end() || giver->connection < 0 || !of(giver->connection).waits) return;
    shard_->give(static_cast<Worker>(giver - members_.begin()));
  }
  for (auto& [socket, connection] : connections_) {
    if (connection.waits) make_ready(connection);
  }
}

void Server::make_ready(Connection& connection) {
  connection.waits = false;
  send(connection.socket.get(), Ready{.version = shard_->pull(connection.worker)});
}

// -------------------------------------------------------------------------------------------
// Pushes and leases

Status Server::push(Connection& connection, Push message) {
  if (message.worker != connection.worker) {
    return refused(ErrorCode::kMalformed, words_of(connection.worker) + " pushes for another");
  }
  CIRANDA_TRY(shard_->check(message));
  std::vector<Ack> acks;
  shard_->push(std::move(message), acks);
  send_acks(acks);
  return {};
}

void Server::hear(Connection& connection) {
  connection.heard_ns = turn_ns_;
  if (std::exchange(connection.silent, false)) shard_->hear(connection.worker);
}

std::uint64_t Server::next_lease_ns() const {
  std::uint64_t next = kNever;
  for (const auto& [socket, connection] : connections_) {
    if (connection.memory.data() == nullptr || connection.silent) continue;
    next = std::min(next, connection.heard_ns + options_.lease_ns);
  }
  return next;
}

void Server::end_leases() {
  const std::uint64_t now = monotonic_ns();
  std::vector<Ack> acks;
  for (auto& [socket, connection] : connections_) {
    if (connection.memory.data() == nullptr || connection.silent ||
        now < connection.heard_ns + options_.lease_ns) {
      continue;
    }
    connection.silent = true;
    shard_->fall_silent(connection.worker, acks);
  }
  send_acks(acks);
}

bool Server::all_have_left() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const Member& each) { return each.left; });
}

Stats Server::stats() const {
  Stats stats{.busy_ns = busy_ns_, .oldest_ns = oldest_ns_, .outcomes = {}, .staleness = {}};
  if (!shard_) return stats;
  const ShardCounters& counters = shard_->counters();
  stats.version = shard_->version();
  stats.held_bytes = shard_->held_bytes();
  stats.outcomes.assign(counters.outcomes.begin(), counters.outcomes.end());
  stats.staleness.assign(counters.staleness.begin(), counters.staleness.end());
  stats.gradient_bytes = counters.gradient_bytes;
  stats.parameter_bytes = counters.parameter_bytes;
  return stats;
}

}  // namespace ciranda::ps
