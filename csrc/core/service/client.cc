#include "core/service/client.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "core/base/clock.h"
#include "core/base/thread.h"
#include "core/service/server.h"
#include "core/transport/job_folder.h"
#include "core/transport/socket_io.h"

namespace ciranda::ps {
namespace {

constexpr std::uint64_t kMsInNs = 1'000'000;

std::string words_of(int server) {
  return "server " + std::to_string(server);
}

}  // namespace

Client::Client(ClientOptions options) : options_(std::move(options)) {
  if (options_.timeline_path.empty()) return;
  timeline_ = std::make_unique<Timeline>(options_.worker, options_.job_id);
  if (const Status on = timeline_->start(options_.timeline_path); !on) {
    std::fprintf(stderr, "ciranda: %s\n", on.error().text.c_str());
  }
}

Result<std::unique_ptr<Client>> Client::connect(ClientOptions options) {
  std::unique_ptr<Client> client(new Client(std::move(options)));
  const ClientOptions& own = client->options_;
  const MutexLock lock(client->mutex_);
  client->packet_.resize(kPacketBytesMax);
  client->versions_.resize(static_cast<std::size_t>(own.servers));
  client->stop_ = Fd(::eventfd(0, EFD_CLOEXEC));
  if (!client->stop_.valid()) return Error::from_errno("eventfd", errno);
  const std::uint64_t deadline_ns = monotonic_ns() + own.timeout_ms * kMsInNs;
  for (int server = 0; server < own.servers; ++server) {
    auto socket = connect_in_job_folder(folder_of_server(own.folder, server), deadline_ns,
                                        own.timeout_ms, words_of(server));
    if (!socket) return socket.error();
    client->sockets_.push_back(std::move(socket).value());
    CIRANDA_TRY(client->enter(server));
  }
  auto thread = start_thread("ciranda-ps-beat", [self = client.get()] { self->beat(); });
  if (!thread) return thread.error();
  client->beats_ = std::move(thread).value();
  return client;
}

Client::~Client() {
  leave();
}

void Client::leave() {
  if (beats_.joinable()) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
    beats_.join();
  }
  const MutexLock lock(mutex_);
  if (failure_) return;
  // It may not have reached all of them.
  const int reached = static_cast<int>(sockets_.size());
  for (int server = 0; server < reached; ++server) static_cast<void>(tell(server, Leave{}, {}));
  failure_ = Error{.code = ErrorCode::kShutdown, .text = "this worker has left its servers"};
  if (!timeline_) return;
  if (const Status written = timeline_->stop(); !written) {
    std::fprintf(stderr, "ciranda: %s\n", written.error().text.c_str());
  }
}

void Client::close_in_forked_child() noexcept {
  for (Fd& socket : sockets_) socket.reset();
  stop_.reset();
}

// -------------------------------------------------------------------------------------------
// Packets

Status Client::tell(int server, const Message& message, std::span<const int> fds) {
  encoded_.clear();
  encode(message, encoded_);
  const Status sent = send_packet(sockets_[static_cast<std::size_t>(server)].get(), encoded_, fds);
  return sent ? sent : Status(lost(server));
}

Status Client::tell_all(const Message& message, std::span<const int> fds) {
  if (failure_) return *failure_;
  for (int server = 0; server < options_.servers; ++server) {
    CIRANDA_TRY(tell(server, message, fds));
  }
  return {};
}

Result<Message> Client::next_message(int server) {
  const int socket = sockets_[static_cast<std::size_t>(server)].get();
  for (;;) {
    auto packet = receive_packet(socket, packet_);
    if (!packet || packet.value().what == Received::kClosed) return lost(server);
    if (packet.value().what == Received::kPacket) {
      return decode_message(std::span(packet_).first(packet.value().bytes));
    }
    const auto readable = wait_readable(socket, kNever);
    if (!readable) return readable.error();
  }
}

template <typename T>
Result<T> Client::hear(int server) {
  auto message = next_message(server);
  if (!message) return message.error();
  if (T* wanted = std::get_if<T>(&message.value())) return std::move(*wanted);
  if (const auto* refused = std::get_if<Refused>(&message.value())) {
    failure_ = Error{.code = refused->code, .text = words_of(server) + ": " + refused->text};
    return *failure_;
  }
  return Error{.code = ErrorCode::kMalformed,
               .text = words_of(server) + " answered something else than it was asked"};
}

// From the first `servers` of them.
Result<MemorySegment> Client::fetch(const Message& question, std::size_t bytes, int servers) {
  CIRANDA_TRY(hear_answers());
  if (bytes == 0) return MemorySegment();  // of parameters without elements
  auto memory = MemorySegment::create(bytes);
  if (!memory) return memory.error();
  const int fds[] = {memory.value().fd.get()};
  for (int server = 0; server < servers; ++server) CIRANDA_TRY(tell(server, question, fds));
  for (int server = 0; server < servers; ++server) {
    const auto fetched = hear<Fetched>(server);
    if (!fetched) return fetched.error();
  }
  return std::move(memory.value().segment);
}

// What it has told last may say why it is gone.
Error Client::lost(int server) {
  if (failure_) return *failure_;
  failure_ = Error{.code = ErrorCode::kRankLost, .text = words_of(server) + " is lost"};
  lost_server_ = server;
  auto packet = receive_packet(sockets_[static_cast<std::size_t>(server)].get(), packet_);
  if (packet && packet.value().what == Received::kPacket) {
    const auto last = decode_message(std::span(packet_).first(packet.value().bytes));
    const auto* refused = last ? std::get_if<Refused>(&last.value()) : nullptr;
    if (refused != nullptr) {
      failure_ = Error{.code = refused->code, .text = words_of(server) + ": " + refused->text};
      lost_server_.reset();
    }
  }
  return *failure_;
}

// In a thread of its own: the program may compute for longer than a lease.
void Client::beat() {
  std::vector<std::byte> packet;
  encode(Message(Beat{}), packet);
  pollfd stop{.fd = stop_.get(), .events = POLLIN, .revents = 0};
  const int every_ms = static_cast<int>(options_.beat_ns / kMsInNs);
  while (::poll(&stop, 1, every_ms) <= 0) {
    for (const Fd& socket : sockets_) static_cast<void>(send_packet(socket.get(), packet, {}));
  }
}

// -------------------------------------------------------------------------------------------
// What a worker asks

Status Client::enter(int server) {
  CIRANDA_TRY(tell(server,
                   Enter{.job_id = options_.job_id,
                         .worker = options_.worker,
                         .life = options_.life,
                         .workers = options_.workers,
                         .servers = options_.servers,
                         .server = server},
                   {}));
  auto welcome = hear<Welcome>(server);
  if (!welcome) return welcome.error();
  // A push that only some servers have decided is over: it was never answered.
  seq_ = std::max(seq_, welcome.value().decided);
  return {};
}

Status Client::declare(const Model& model, const Fill& fill) {
  const MutexLock lock(mutex_);
  if (failure_) return *failure_;
  CIRANDA_TRY(check(model));
  if (layout_) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .text =
                     "this worker has declared its parameters already; servers hold those of "
                     "one model"};
  }
  std::vector<std::byte> letter;
  encode(model, letter);
  if (letter.size() > kModelBytesMax) {
    return Error{.code = ErrorCode::kLimit, .text = "the parameters' names take too many bytes"};
  }
  auto words = MemorySegment::create(letter.size());
  if (!words) return words.error();
  std::memcpy(words.value().segment.data(), letter.data(), letter.size());
  Layout layout(model, options_.servers);
  auto memory = MemorySegment::create(static_cast<std::size_t>(layout.memory_bytes()));
  if (!memory) return memory.error();
  fill(layout, memory.value().segment.data());
  const int fds[] = {words.value().fd.get(), memory.value().fd.get()};
  CIRANDA_TRY(tell_all(Declare{.model_bytes = letter.size(), .decided = seq_}, fds));
  for (int server = 0; server < options_.servers; ++server) {
    const auto ready = hear<Ready>(server);
    if (!ready) return ready.error();
    versions_[static_cast<std::size_t>(server)] = ready.value().version;
    clock_ = std::max(clock_, ready.value().clock);
  }
  memory_ = std::move(memory.value().segment);
  gradients_ = memory_;
  model_ = model;
  layout_ = std::move(layout);
  return {};
}

Status Client::move_gradients() {
  const MutexLock lock(mutex_);
  CIRANDA_TRY(hear_answers());
  auto memory = MemorySegment::create(static_cast<std::size_t>(layout_->gradient_bytes()));
  if (!memory) return memory.error();
  const int fds[] = {memory.value().fd.get()};
  CIRANDA_TRY(tell_all(MoveGradients{}, fds));
  gradients_ = std::move(memory.value().segment);
  return {};
}

std::vector<std::uint64_t> Client::versions() const {
  const MutexLock lock(mutex_);
  return versions_;
}

Status Client::push(std::span<const std::uint64_t> versions, double scale,
                    std::vector<kernels::UpdateRule> rules, std::vector<bool> used) {
  const MutexLock lock(mutex_);
  CIRANDA_TRY(hear_answers());
  Message message = Push{.worker = options_.worker,
                         .seq = seq_ + 1,
                         .base = 0,
                         .clock = clock_ + 1,
                         .scale = scale,
                         .rules = std::move(rules),
                         .used = std::move(used)};
  if (failure_) return *failure_;
  for (int server = 0; server < options_.servers; ++server) {
    std::get<Push>(message).base = versions[static_cast<std::size_t>(server)];
    CIRANDA_TRY(tell(server, message, {}));
  }
  ++seq_;
  ++clock_;
  unanswered_ = true;
  pushed_ns_ = monotonic_ns();
  for (std::size_t table = 0; table < model_.tables.size(); ++table) {
    stats_.pushed_bytes += static_cast<std::uint64_t>(layout_->elements(table)) *
                           dtype_bytes(model_.tables[table].dtype);
  }
  return {};
}

Status Client::hear_answers() {
  if (failure_) return *failure_;
  if (!unanswered_) return {};
  Outcome outcome = Outcome::kApplied;
  std::uint64_t held_ns = 0;
  const std::uint64_t begin_ns = monotonic_ns();
  for (int server = 0; server < options_.servers; ++server) {
    const auto ack = hear<Ack>(server);
    if (!ack) return ack.error();
    outcome = std::max(outcome, ack.value().outcome);
    held_ns = std::max(held_ns, ack.value().held_ns);
    versions_[static_cast<std::size_t>(server)] = ack.value().version;
    clock_ = std::max(clock_, ack.value().clock);
  }
  unanswered_ = false;
  outcome_ = outcome;
  const std::uint64_t end_ns = monotonic_ns();
  ++stats_.outcomes[static_cast<std::size_t>(outcome)];
  stats_.waiting_ns += end_ns - begin_ns;
  stats_.held_ns += std::min(held_ns, end_ns - begin_ns);
  if (timeline_) timeline_->record("PUSH", "parameters", pushed_ns_, end_ns);
  return {};
}

Result<Outcome> Client::answer() {
  const MutexLock lock(mutex_);
  CIRANDA_TRY(hear_answers());
  return std::exchange(outcome_, Outcome::kApplied);
}

Status Client::pull() {
  const MutexLock lock(mutex_);
  CIRANDA_TRY(hear_answers());
  const std::uint64_t begin_ns = monotonic_ns();
  CIRANDA_TRY(tell_all(Pull{}));
  for (int server = 0; server < options_.servers; ++server) {
    const auto ready = hear<Ready>(server);
    if (!ready) return ready.error();
    versions_[static_cast<std::size_t>(server)] = ready.value().version;
    clock_ = std::max(clock_, ready.value().clock);
  }
  ++stats_.pulls;
  if (timeline_) timeline_->record("PULL", "parameters", begin_ns, monotonic_ns());
  return {};
}

Result<MemorySegment> Client::fetch_state(std::size_t table, std::size_t array) {
  const MutexLock lock(mutex_);
  const auto elements = static_cast<std::size_t>(layout_->elements(table));
  return fetch(FetchState{.table = static_cast<std::uint32_t>(table),
                          .array = static_cast<std::uint32_t>(array)},
               elements * dtype_bytes(model_.tables[table].dtype), options_.servers);
}

Result<MemorySegment> Client::fetch_steps() {
  const MutexLock lock(mutex_);
  return fetch(FetchSteps{}, slot_count(model_) * sizeof(std::int64_t), 1);
}

Result<double> Client::average(const std::string& name, double value) {
  const MutexLock lock(mutex_);
  CIRANDA_TRY(hear_answers());
  CIRANDA_TRY(tell(0, Average{.name = name, .value = value}, {}));
  const auto averaged = hear<Averaged>(0);
  if (!averaged) return averaged.error();
  return averaged.value().mean;
}

std::optional<int> Client::lost_server() const {
  const MutexLock lock(mutex_);
  return lost_server_;
}

ClientStats Client::own_stats() const {
  const MutexLock lock(mutex_);
  return stats_;
}

Result<std::vector<Stats>> Client::stats() {
  const MutexLock lock(mutex_);
  CIRANDA_TRY(hear_answers());
  CIRANDA_TRY(tell_all(AskStats{}));
  std::vector<Stats> all;
  for (int server = 0; server < options_.servers; ++server) {
    auto stats = hear<Stats>(server);
    if (!stats) return stats.error();
    all.push_back(std::move(stats).value());
  }
  return all;
}

}  // namespace ciranda::ps
