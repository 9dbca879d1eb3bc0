#include "core/ps/io/parameter_client.h"

#include <cstring>
#include <optional>
#include <utility>
#include <variant>

#include "core/base/clock.h"
#include "core/ps/decide/model_codec.h"

namespace ciranda::ps {

ParameterClient::ParameterClient(Conversation& conversation, BeatThread& beats,
                                 WorkerMemory& memory, Timeline* timeline)
    : conversation_(conversation), beats_(beats), memory_(memory), timeline_(timeline) {}

Status ParameterClient::declare(const Model& model, const Fill& fill) {
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
  Layout layout(model, conversation_.servers());
  auto memory = SharedMemory::create(static_cast<std::size_t>(layout.memory_bytes()));
  if (!memory) return memory.error();
  fill(layout, memory.value().segment.data());
  memory_.model_blob = std::move(words).value();
  memory_.model_blob_bytes = model_blob.size();
  memory_.memory = std::move(memory).value();
  memory_.layout = std::move(layout);
  CIRANDA_TRY(
      conversation_.ask_all(conversation_.progress().pushes.declare(memory_.model_blob_bytes)));
  CIRANDA_TRY(hear_ready());
  model_ = model;
  declared_ = true;
  return {};
}

Status ParameterClient::hear_ready() {
  for (int server = 0; server < conversation_.servers(); ++server) {
    const auto ready = conversation_.hear<Ready>(server);
    if (!ready) return ready.error();
    conversation_.progress().pushes.hear(server, ready.value());
  }
  return conversation_.mark();
}

Status ParameterClient::move_gradients() {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(conversation_.settle());
  auto memory = SharedMemory::create(static_cast<std::size_t>(layout().gradient_bytes()));
  if (!memory) return memory.error();
  memory_.gradients = std::move(memory).value();
  return conversation_.tell_all(MoveGradients{});
}

std::vector<std::uint64_t> ParameterClient::versions() const {
  const MutexLock lock(conversation_.mutex());
  return conversation_.progress().pushes.versions();
}

Status ParameterClient::push(std::span<const std::uint64_t> versions, double scale,
                             std::vector<kernels::UpdateRule> rules, std::vector<bool> used,
                             VectorId into, std::vector<std::uint32_t> rule_slots) {
  const MutexLock lock(conversation_.mutex());
  const int servers = conversation_.servers();
  CIRANDA_ASSERT(versions.size() == static_cast<std::size_t>(servers));
  CIRANDA_TRY(conversation_.settle());
  Progress& progress = conversation_.progress();
  Message message = progress.pushes.next({.worker = conversation_.worker(),
                                          .scale = scale,
                                          .rules = std::move(rules),
                                          .used = std::move(used),
                                          .of = progress.tasks.next_part(),
                                          .into = into,
                                          .rule_slots = std::move(rule_slots)});
  for (int server = 0; server < servers; ++server) {
    std::get<Push>(message).base = versions[static_cast<std::size_t>(server)];
    CIRANDA_TRY(conversation_.ask(server, message));
  }
  if (conversation_.has_queued()) beats_.wake();
  progress.pushes.sent(gradient_bytes(), monotonic_ns());
  return {};
}

std::uint64_t ParameterClient::gradient_bytes() const {
  std::uint64_t bytes = 0;
  for (std::size_t table = 0; table < model_.tables.size(); ++table) {
    bytes += static_cast<std::uint64_t>(layout().elements(table)) *
             dtype_bytes(model_.tables[table].dtype);
  }
  return bytes;
}

Result<Outcome> ParameterClient::answer() {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(conversation_.settle());
  return conversation_.progress().pushes.take_outcome();
}

Status ParameterClient::pull() {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(conversation_.settle());
  const std::uint64_t begin_ns = monotonic_ns();
  CIRANDA_TRY(conversation_.ask_all(Pull{}));
  CIRANDA_TRY(hear_ready());
  conversation_.progress().pushes.pulled();
  if (timeline_ != nullptr) timeline_->record("PULL", "parameters", begin_ns, monotonic_ns());
  return {};
}

Result<MemorySegment> ParameterClient::fetch_state(std::size_t table, std::size_t array) {
  const MutexLock lock(conversation_.mutex());
  const auto elements = static_cast<std::size_t>(layout().elements(table));
  return fetch(FetchState{.table = static_cast<std::uint32_t>(table),
                          .array = static_cast<std::uint32_t>(array)},
               elements * dtype_bytes(model_.tables[table].dtype), conversation_.servers());
}

Result<MemorySegment> ParameterClient::fetch_steps() {
  const MutexLock lock(conversation_.mutex());
  return fetch(FetchSteps{}, slot_count(model_) * sizeof(std::int64_t), 1);
}

// Asks the first `servers` servers to write `bytes` bytes into one new segment.
Result<MemorySegment> ParameterClient::fetch(const Message& question, std::size_t bytes,
                                             int servers) {
  CIRANDA_TRY(conversation_.settle());
  if (bytes == 0) return MemorySegment();  // the parameters have no elements
  auto memory = SharedMemory::create(bytes);
  if (!memory) return memory.error();
  memory_.fetched = std::move(memory).value();
  memory_.fetched_bytes = bytes;
  const auto* state = std::get_if<FetchState>(&question);
  memory_.fetched_table =
      state != nullptr ? std::optional<std::size_t>(state->table) : std::nullopt;
  for (int server = 0; server < servers; ++server) {
    CIRANDA_TRY(conversation_.ask(server, question));
  }
  for (int server = 0; server < servers; ++server) {
    const auto fetched = conversation_.hear<Fetched>(server);
    if (!fetched) return fetched.error();
  }
  return std::exchange(memory_.fetched, {}).segment;
}

ClientStats ParameterClient::stats() const {
  const MutexLock lock(conversation_.mutex());
  return conversation_.progress().pushes.stats();
}

}  // namespace ciranda::ps
