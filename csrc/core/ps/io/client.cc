#include "core/ps/io/client.h"

#include <cstdio>
#include <cstring>
#include <utility>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/ps/decide/model_codec.h"

namespace ciranda::ps {
namespace {

std::unique_ptr<Timeline> make_timeline(const ClientOptions& options) {
  if (options.timeline_path.empty()) return nullptr;
  auto timeline = std::make_unique<Timeline>(options.address.worker, options.job_id);
  if (const Status on = timeline->start(options.timeline_path); !on) {
    std::fprintf(stderr, "ciranda: %s\n", on.error().text.c_str());
  }
  return timeline;
}

}  // namespace

Client::Client(ClientOptions options)
    : options_(std::move(options)),
      timeline_(make_timeline(options_)),
      conversation_(options_, memory_, timeline_.get()),
      tasks_(conversation_) {}

Result<std::unique_ptr<Client>> Client::connect(ClientOptions options) {
  std::unique_ptr<Client> client(new Client(std::move(options)));
  {
    const MutexLock lock(client->conversation_.mutex());
    CIRANDA_TRY(client->conversation_.enter());
  }
  CIRANDA_TRY(client->beats_.start([&conversation = client->conversation_] {
    const MutexLock lock(conversation.mutex());
    return conversation.attend();
  }));
  return client;
}

Client::~Client() {
  leave();
}

void Client::leave() {
  beats_.stop();
  const MutexLock lock(conversation_.mutex());
  if (!conversation_.check()) return;
  conversation_.leave();
  if (!timeline_) return;
  if (const Status written = timeline_->stop(); !written) {
    std::fprintf(stderr, "ciranda: %s\n", written.error().text.c_str());
  }
}

void Client::close_in_forked_child() noexcept {
  conversation_.close_in_forked_child();
  beats_.close_in_forked_child();
}

Status Client::declare(const Model& model, const Fill& fill) {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(conversation_.check());
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
  CIRANDA_TRY(conversation_.ask_all(conversation_.progress().pushes.declare(model_blob.size())));
  CIRANDA_TRY(hear_ready());
  model_ = model;
  declared_ = true;
  return {};
}

Status Client::hear_ready() {
  for (int server = 0; server < servers(); ++server) {
    const auto ready = conversation_.hear<Ready>(server);
    if (!ready) return ready.error();
    conversation_.progress().pushes.hear(server, ready.value());
  }
  return conversation_.mark();
}

Status Client::move_gradients() {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(conversation_.settle());
  auto memory = SharedMemory::create(static_cast<std::size_t>(layout().gradient_bytes()));
  if (!memory) return memory.error();
  memory_.gradients = std::move(memory).value();
  return conversation_.tell_all(MoveGradients{});
}

std::vector<std::uint64_t> Client::versions() const {
  const MutexLock lock(conversation_.mutex());
  return conversation_.progress().pushes.versions();
}

Status Client::push(std::span<const std::uint64_t> versions, double scale,
                    std::vector<kernels::UpdateRule> rules, std::vector<bool> used, VectorId into,
                    std::vector<std::uint32_t> rule_slots) {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_ASSERT(versions.size() == options_.address.servers.size());
  CIRANDA_TRY(conversation_.settle());
  Message message =
      conversation_.progress().pushes.next({.worker = worker(),
                                            .scale = scale,
                                            .rules = std::move(rules),
                                            .used = std::move(used),
                                            .of = conversation_.progress().tasks.next_part(),
                                            .into = into,
                                            .rule_slots = std::move(rule_slots)});
  for (int server = 0; server < servers(); ++server) {
    std::get<Push>(message).base = versions[at(server)];
    CIRANDA_TRY(conversation_.ask(server, message));
  }
  if (conversation_.has_queued()) beats_.wake();
  std::uint64_t bytes = 0;
  for (std::size_t table = 0; table < model_.tables.size(); ++table) {
    bytes += static_cast<std::uint64_t>(layout().elements(table)) *
             dtype_bytes(model_.tables[table].dtype);
  }
  conversation_.progress().pushes.sent(bytes, monotonic_ns());
  return {};
}

Result<Outcome> Client::answer() {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(conversation_.settle());
  return conversation_.progress().pushes.take_outcome();
}

Status Client::pull() {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(conversation_.settle());
  const std::uint64_t begin_ns = monotonic_ns();
  CIRANDA_TRY(conversation_.ask_all(Pull{}));
  CIRANDA_TRY(hear_ready());
  conversation_.progress().pushes.pulled();
  if (timeline_) timeline_->record("PULL", "parameters", begin_ns, monotonic_ns());
  return {};
}

// Asks the first `servers` servers to write `bytes` bytes into one new segment.
Result<MemorySegment> Client::fetch(const Message& question, std::size_t bytes, int servers) {
  CIRANDA_TRY(conversation_.settle());
  if (bytes == 0) return MemorySegment();  // the parameters have no elements
  auto memory = SharedMemory::create(bytes);
  if (!memory) return memory.error();
  memory_.fetched = std::move(memory).value();
  memory_.fetched_bytes = bytes;
  const auto* state = std::get_if<FetchState>(&question);
  memory_.fetched_table =
      state != nullptr ? std::optional<std::size_t>(state->table) : std::nullopt;
  for (int server = 0; server < servers; ++server) CIRANDA_TRY(conversation_.ask(server, question));
  for (int server = 0; server < servers; ++server) {
    const auto fetched = conversation_.hear<Fetched>(server);
    if (!fetched) return fetched.error();
  }
  return std::exchange(memory_.fetched, {}).segment;
}

Result<MemorySegment> Client::fetch_state(std::size_t table, std::size_t array) {
  const MutexLock lock(conversation_.mutex());
  const auto elements = static_cast<std::size_t>(layout().elements(table));
  return fetch(FetchState{.table = static_cast<std::uint32_t>(table),
                          .array = static_cast<std::uint32_t>(array)},
               elements * dtype_bytes(model_.tables[table].dtype), servers());
}

Result<MemorySegment> Client::fetch_steps() {
  const MutexLock lock(conversation_.mutex());
  return fetch(FetchSteps{}, slot_count(model_) * sizeof(std::int64_t), 1);
}

Result<double> Client::average(const std::string& name, double value) {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(conversation_.settle());
  CIRANDA_TRY(conversation_.ask(0, Average{.name = name, .value = value}));
  const auto averaged = conversation_.hear<Averaged>(0);
  if (!averaged) return averaged.error();
  return averaged.value().mean;
}

std::optional<int> Client::lost_server() const {
  const MutexLock lock(conversation_.mutex());
  return conversation_.lost_server();
}

ClientStats Client::own_stats() const {
  const MutexLock lock(conversation_.mutex());
  return conversation_.progress().pushes.stats();
}

Result<std::vector<Stats>> Client::stats() {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(conversation_.settle());
  return conversation_.ask_stats();
}

}  // namespace ciranda::ps
