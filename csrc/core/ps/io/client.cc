#include "core/ps/io/client.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/base/thread.h"
#include "core/ps/decide/model_codec.h"
#include "core/transport/dial/job_key.h"
#include "core/transport/tcp/socket_io.h"

namespace ciranda::ps {

Client::Client(ClientOptions options)
    : options_(std::move(options)),
      process_(random_number()),
      notice_("ciranda: " + self()),
      progress_{.pushes = PushProgress(servers())} {
  if (options_.timeline_path.empty()) return;
  timeline_ = std::make_unique<Timeline>(worker(), options_.job_id);
  if (const Status on = timeline_->start(options_.timeline_path); !on) {
    std::fprintf(stderr, "ciranda: %s\n", on.error().text.c_str());
  }
}

Result<std::unique_ptr<Client>> Client::connect(ClientOptions options) {
  std::unique_ptr<Client> client(new Client(std::move(options)));
  const MutexLock lock(client->mutex_);
  client->wake_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!client->wake_.valid()) return Error::from_errno("eventfd", errno);
  auto links = connect_to_servers(client->options_.address, client->memory_, client->notice_);
  if (!links) return links.error();
  client->links_ = ServerLinks(std::move(links).value(), client->options_.pace, &client->notice_);
  client->asked_.resize(static_cast<std::size_t>(client->servers()));
  CIRANDA_TRY(client->enter());
  auto thread = start_thread("ciranda-ps-beat", [self = client.get()] { self->attend(); });
  if (!thread) return thread.error();
  client->thread_ = std::move(thread).value();
  return client;
}

Client::~Client() {
  leave();
}

void Client::leave() {
  {
    const MutexLock lock(mutex_);
    leaving_ = true;
  }
  if (thread_.joinable()) {
    wake_thread();
    thread_.join();
  }
  const MutexLock lock(mutex_);
  if (failure_) return;
  // A server that is restarting would miss Leave and wait for this worker for ever. An answer shows
  // that it is back.
  const bool may_be_away =
      std::any_of(asked_.begin(), asked_.end(), [](const Asked& each) { return each.keeps_state; });
  const PushProgress& pushes = progress_.pushes;
  if (!may_be_away || pushes.unanswered() || ask_stats()) links_.leave(pushes.announced());
  failure_ = Error{.code = ErrorCode::kShutdown, .text = "this worker has left its servers"};
  if (!timeline_) return;
  if (const Status written = timeline_->stop(); !written) {
    std::fprintf(stderr, "ciranda: %s\n", written.error().text.c_str());
  }
}

void Client::close_in_forked_child() noexcept {
  links_.close();
  wake_.reset();
}

// -------------------------------------------------------------------------------------------
// Messages

// Keeps the first error, which every later call returns.
Error Client::failed(Error error) {
  if (!failure_) {
    failure_ = std::move(error);
    if (failure_->code == ErrorCode::kRankLost) lost_server_ = failure_->rank;
  }
  return *failure_;
}

Status Client::ask(int server, const Message& question) {
  asked_[at(server)].question = question;
  const Status sent = links_.send(server, question);
  return sent ? sent : rejoin(sent.error());
}

Status Client::ask_all(const Message& question) {
  if (failure_) return *failure_;
  for (int server = 0; server < servers(); ++server) CIRANDA_TRY(ask(server, question));
  return {};
}

// Asks the first `servers` servers to write `bytes` bytes into one new segment.
Result<MemorySegment> Client::fetch(const Message& question, std::size_t bytes, int servers) {
  CIRANDA_TRY(hear_answers());
  if (bytes == 0) return MemorySegment();  // the parameters have no elements
  auto memory = SharedMemory::create(bytes);
  if (!memory) return memory.error();
  memory_.fetched = std::move(memory).value();
  memory_.fetched_bytes = bytes;
  const auto* state = std::get_if<FetchState>(&question);
  memory_.fetched_table =
      state != nullptr ? std::optional<std::size_t>(state->table) : std::nullopt;
  for (int server = 0; server < servers; ++server) CIRANDA_TRY(ask(server, question));
  for (int server = 0; server < servers; ++server) {
    const auto fetched = hear<Fetched>(server);
    if (!fetched) return fetched.error();
  }
  return std::exchange(memory_.fetched, {}).segment;
}

// -------------------------------------------------------------------------------------------
// The thread

void Client::wake_thread() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

// The thread: sends beats, so that this worker keeps its lease while the program computes, and
// sends what earlier calls have left in the queues.
void Client::attend() {
  for (;;) {
    std::vector<pollfd> polled;
    std::uint64_t deadline_ns = kNever;
    {
      const MutexLock lock(mutex_);
      if (leaving_) return;
      if (!failure_) {
        links_.beat_if_due();
        deadline_ns = links_.next_beat_ns();
        polled = send_queued();
      }
    }
    polled.push_back({.fd = wake_.get(), .events = POLLIN, .revents = 0});
    ::poll(polled.data(), polled.size(), poll_timeout_ms(deadline_ns));
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t had = ::read(wake_.get(), &count, sizeof count);
  }
}

// Sends what is queued, and returns what to poll for while something is left.
std::vector<pollfd> Client::send_queued() {
  if (!links_.has_queued()) return {};
  links_.advance(ServerLinks::kNobody);
  return links_.news_of(ServerLinks::kNobody);
}

// -------------------------------------------------------------------------------------------
// Questions of a worker

Enter Client::entry(int server) const {
  return {.job_id = options_.job_id,
          .worker = worker(),
          .life = options_.address.life,
          .process = process_,
          .workers = options_.workers,
          .servers = servers(),
          .server = server,
          .origin = options_.origin};
}

Status Client::enter() {
  for (int server = 0; server < servers(); ++server) CIRANDA_TRY(ask(server, entry(server)));
  for (int server = 0; server < servers(); ++server) {
    const auto welcome = hear<Welcome>(server);
    if (!welcome) return welcome.error();
    progress_.pushes.enter(welcome.value());
    asked_[at(server)].keeps_state = welcome.value().keeps_state;
  }
  return {};
}

Status Client::declare(const Model& model, const Fill& fill) {
  const MutexLock lock(mutex_);
  if (failure_) return *failure_;
  CIRANDA_TRY(check(model));
  if (declared_) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .text =
                     "this worker has declared its parameters already; servers hold the parameters "
                     "of one model"};
  }
  std::vector<std::byte> model_blob;
  encode(model, model_blob);
  if (model_blob.size() > kModelBytesMax) {
    return Error{.code = ErrorCode::kLimit, .text = "the parameters' names take too many bytes"};
  }
  auto words = SharedMemory::create(model_blob.size());
  if (!words) return words.error();
  CIRANDA_ASSERT(words.value().segment.bytes() >= model_blob.size());
  std::memcpy(words.value().segment.data(), model_blob.data(), model_blob.size());
  Layout layout(model, servers());
  auto memory = SharedMemory::create(static_cast<std::size_t>(layout.memory_bytes()));
  if (!memory) return memory.error();
  fill(layout, memory.value().segment.data());
  memory_.model_blob = std::move(words).value();
  memory_.model_blob_bytes = model_blob.size();
  memory_.memory = std::move(memory).value();
  memory_.layout = std::move(layout);
  CIRANDA_TRY(ask_all(progress_.pushes.declare(model_blob.size())));
  CIRANDA_TRY(hear_ready());
  model_ = model;
  declared_ = true;
  return {};
}

Status Client::hear_ready() {
  for (int server = 0; server < servers(); ++server) {
    const auto ready = hear<Ready>(server);
    if (!ready) return ready.error();
    progress_.pushes.hear(server, ready.value());
  }
  return mark();
}

Status Client::mark() {
  const std::optional<Mark> mark = progress_.pushes.take_mark();
  if (!mark) return {};
  for (int server = 0; server < servers(); ++server) {
    const Status sent = links_.send(server, *mark);
    if (!sent) CIRANDA_TRY(rejoin(sent.error()));  // sends it again
  }
  return {};
}

Status Client::move_gradients() {
  const MutexLock lock(mutex_);
  CIRANDA_TRY(hear_answers());
  auto memory = SharedMemory::create(static_cast<std::size_t>(layout().gradient_bytes()));
  if (!memory) return memory.error();
  memory_.gradients = std::move(memory).value();
  for (int server = 0; server < servers(); ++server) {
    const Status sent = links_.send(server, MoveGradients{});
    if (!sent) CIRANDA_TRY(rejoin(sent.error()));
  }
  return {};
}

std::vector<std::uint64_t> Client::versions() const {
  const MutexLock lock(mutex_);
  return progress_.pushes.versions();
}

Status Client::push(std::span<const std::uint64_t> versions, double scale,
                    std::vector<kernels::UpdateRule> rules, std::vector<bool> used, VectorId into,
                    std::vector<std::uint32_t> rule_slots) {
  const MutexLock lock(mutex_);
  CIRANDA_ASSERT(versions.size() == asked_.size());
  CIRANDA_TRY(hear_answers());
  Message message = progress_.pushes.next({.worker = worker(),
                                           .scale = scale,
                                           .rules = std::move(rules),
                                           .used = std::move(used),
                                           .of = progress_.tasks.next_part(),
                                           .into = into,
                                           .rule_slots = std::move(rule_slots)});
  for (int server = 0; server < servers(); ++server) {
    std::get<Push>(message).base = versions[at(server)];
    CIRANDA_TRY(ask(server, message));
  }
  if (links_.has_queued()) wake_thread();
  std::uint64_t bytes = 0;
  for (std::size_t table = 0; table < model_.tables.size(); ++table) {
    bytes += static_cast<std::uint64_t>(layout().elements(table)) *
             dtype_bytes(model_.tables[table].dtype);
  }
  progress_.pushes.sent(bytes, monotonic_ns());
  return {};
}

Status Client::hear_answers() {
  if (failure_) return *failure_;
  PushProgress& pushes = progress_.pushes;
  if (!pushes.unanswered()) return {};
  const std::uint64_t begin_ns = monotonic_ns();
  for (int server = 0; server < servers(); ++server) {
    const auto ack = hear<Ack>(server);
    if (!ack) return ack.error();
    pushes.hear(server, ack.value());
  }
  const std::uint64_t end_ns = monotonic_ns();
  pushes.answered(begin_ns, end_ns);
  if (timeline_) timeline_->record("PUSH", "parameters", pushes.sent_ns(), end_ns);
  return mark();
}

Result<Outcome> Client::answer() {
  const MutexLock lock(mutex_);
  CIRANDA_TRY(hear_answers());
  return progress_.pushes.take_outcome();
}

Status Client::pull() {
  const MutexLock lock(mutex_);
  CIRANDA_TRY(hear_answers());
  const std::uint64_t begin_ns = monotonic_ns();
  CIRANDA_TRY(ask_all(Pull{}));
  CIRANDA_TRY(hear_ready());
  progress_.pushes.pulled();
  if (timeline_) timeline_->record("PULL", "parameters", begin_ns, monotonic_ns());
  return {};
}

Result<MemorySegment> Client::fetch_state(std::size_t table, std::size_t array) {
  const MutexLock lock(mutex_);
  const auto elements = static_cast<std::size_t>(layout().elements(table));
  return fetch(FetchState{.table = static_cast<std::uint32_t>(table),
                          .array = static_cast<std::uint32_t>(array)},
               elements * dtype_bytes(model_.tables[table].dtype), servers());
}

Result<MemorySegment> Client::fetch_steps() {
  const MutexLock lock(mutex_);
  return fetch(FetchSteps{}, slot_count(model_) * sizeof(std::int64_t), 1);
}

Result<double> Client::average(const std::string& name, double value) {
  const MutexLock lock(mutex_);
  CIRANDA_TRY(hear_answers());
  CIRANDA_TRY(ask(0, Average{.name = name, .value = value}));
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
  return progress_.pushes.stats();
}

Result<std::vector<Stats>> Client::stats() {
  const MutexLock lock(mutex_);
  CIRANDA_TRY(hear_answers());
  return ask_stats();
}

Result<std::vector<Stats>> Client::ask_stats() {
  CIRANDA_TRY(ask_all(AskStats{}));
  std::vector<Stats> all;
  for (int server = 0; server < servers(); ++server) {
    auto stats = hear<Stats>(server);
    if (!stats) return stats.error();
    all.push_back(std::move(stats).value());
  }
  return all;
}

}  // namespace ciranda::ps
