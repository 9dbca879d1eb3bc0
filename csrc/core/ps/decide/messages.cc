#include "core/ps/decide/messages.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/ps/decide/model_codec.h"
#include "core/wire/codec.h"
#include "core/wire/kinds.h"

namespace ciranda::ps {
namespace {

constexpr std::size_t kAverageNameBytesMax = kNameBytesMax;
constexpr std::size_t kStatsBinsMax = 64;

void write_bits(Writer& out, const std::vector<bool>& bits) {
  out.varint(bits.size());
  for (std::size_t i = 0; i < bits.size(); i += 8) {
    int byte = 0;
    for (std::size_t bit = 0; bit < 8 && i + bit < bits.size(); ++bit) {
      byte |= bits[i + bit] ? 1 << bit : 0;
    }
    out.u8(static_cast<std::uint8_t>(byte));
  }
}
std::vector<bool> read_bits(Reader& in, const char* field) {
  const auto size = static_cast<std::size_t>(in.varint(field, kSlotsMax));
  if ((size + 7) / 8 > in.remaining())
    return in.fail(field, "is more than the bytes that follow"), std::vector<bool>();
  std::vector<bool> bits(size);
  for (std::size_t i = 0; i < size; i += 8) {
    const std::size_t left = std::min<std::size_t>(8, size - i);
    const int byte = in.u8(field, static_cast<std::uint8_t>((1 << left) - 1));
    for (std::size_t bit = 0; bit < left; ++bit) bits[i + bit] = (byte >> bit & 1) != 0;
  }
  return bits;
}

void write_counts(Writer& out, const std::vector<std::uint64_t>& counts) {
  out.varint(std::min(counts.size(), kStatsBinsMax));
  for (std::size_t i = 0; i < std::min(counts.size(), kStatsBinsMax); ++i) out.varint(counts[i]);
}
std::vector<std::uint64_t> read_counts(Reader& in, const char* field) {
  std::vector<std::uint64_t> counts(in.count(field, kStatsBinsMax, 1));
  for (std::uint64_t& count : counts) count = in.varint(field, UINT64_MAX);
  return counts;
}

void write_part(Writer& out, const TaskPart& part) {
  out.varint(part.task);
  out.varint(part.part);
  out.varint(part.settled);
}
TaskPart read_part(Reader& in) {
  TaskPart part;
  part.task = in.varint("part.task", UINT64_MAX);
  part.part = in.varint("part.part", UINT64_MAX);
  part.settled = in.varint("part.settled", UINT64_MAX);
  return part;
}

// --- Each message's fields, out and in ---

void write(Writer& out, const Enter& message) {
  out.u32(message.version);
  write_text(out, message.job_id, kJobIdBytesMax);
  out.varint(static_cast<std::uint64_t>(message.worker));
  out.varint(message.life);
  out.u64(message.process);
  out.varint(static_cast<std::uint64_t>(message.workers));
  out.varint(static_cast<std::uint64_t>(message.servers));
  out.varint(static_cast<std::uint64_t>(message.server));
  write(out, message.origin);
}
void read(Reader& in, Enter& message) {
  message.version = in.u32("enter.version");
  message.job_id = read_text(in, "enter.job_id", kJobIdBytesMax);
  message.worker = static_cast<Worker>(in.varint("enter.worker", kRanksMax - 1));
  message.life = in.varint("enter.life", UINT64_MAX);
  message.process = in.u64("enter.process");
  message.workers = static_cast<std::int32_t>(in.varint("enter.workers", kRanksMax));
  message.servers = static_cast<std::int32_t>(in.varint("enter.servers", kServersMax));
  message.server = static_cast<std::int32_t>(in.varint("enter.server", kServersMax - 1));
  read(in, message.origin);
}

void write(Writer& out, const Declare& message) {
  out.varint(message.model_bytes);
  out.varint(message.decided);
  out.u8(message.returns ? 1 : 0);
  out.varint(message.answered);
}
void read(Reader& in, Declare& message) {
  message.model_bytes = in.varint("declare.model_bytes", kModelBytesMax);
  message.decided = in.varint("declare.decided", UINT64_MAX);
  message.returns = in.u8("declare.returns", 1) != 0;
  message.answered = in.varint("declare.answered", UINT64_MAX);
}

void write(Writer& out, const Push& message) {
  out.varint(static_cast<std::uint64_t>(message.worker));
  out.varint(message.seq);
  out.varint(message.base);
  out.varint(message.clock);
  out.f64(message.scale);
  write_part(out, message.of);
  out.varint(message.into);
  out.varint(message.rules.size());
  for (const kernels::UpdateRule& rule : message.rules) write_rule(out, rule);
  write_bits(out, message.used);
  out.varint(message.rule_slots.size());
  for (const std::uint32_t slots : message.rule_slots) out.varint(slots);
}
void read(Reader& in, Push& message) {
  message.worker = static_cast<Worker>(in.varint("push.worker", kRanksMax - 1));
  message.seq = in.varint("push.seq", UINT64_MAX);
  message.base = in.varint("push.base", UINT64_MAX);
  message.clock = in.varint("push.clock", UINT64_MAX);
  message.scale = in.f64("push.scale");
  message.of = read_part(in);
  message.into = static_cast<VectorId>(in.varint("push.into", kVectorsMax - 1));
  message.rules.resize(in.count("push.rules", kRulesMax, kRuleBytes));
  for (kernels::UpdateRule& rule : message.rules) rule = read_rule(in);
  message.used = read_bits(in, "push.used");
  message.rule_slots.resize(in.count("push.rule_slots", kRulesMax, 1));
  for (std::uint32_t& slots : message.rule_slots) {
    slots = static_cast<std::uint32_t>(in.varint("push.rule_slots", kSlotsMax));
  }
}

void write(Writer& out, const FetchState& message) {
  out.varint(message.table);
  out.varint(message.array);
}
void read(Reader& in, FetchState& message) {
  message.table = static_cast<std::uint32_t>(in.varint("fetch.table", kTablesMax - 1));
  message.array = static_cast<std::uint32_t>(in.varint("fetch.array", 2));
}

void write(Writer& out, const Average& message) {
  write_text(out, message.name, kAverageNameBytesMax);
  out.f64(message.value);
}
void read(Reader& in, Average& message) {
  message.name = read_text(in, "average.name", kAverageNameBytesMax);
  message.value = in.f64("average.value");
}

void write(Writer& out, const Mark& message) {
  out.varint(message.checkpoint);
}
void read(Reader& in, Mark& message) {
  message.checkpoint = in.varint("mark.checkpoint", kCheckpointMax);
}

void write(Writer& out, const Leave& message) {
  out.varint(message.checkpoint);
}
void read(Reader& in, Leave& message) {
  message.checkpoint = in.varint("leave.checkpoint", kCheckpointMax);
}

void write(Writer& out, const PullRows& message) {
  out.varint(message.table);
  out.varint(message.count);
}
void read(Reader& in, PullRows& message) {
  message.table = static_cast<std::uint32_t>(in.varint("pull_rows.table", kRowTablesMax - 1));
  message.count = in.varint("pull_rows.count", kRowsAtOnceMax);
}

void write(Writer& out, const PushRows& message) {
  out.varint(message.seq);
  out.varint(message.table);
  out.varint(message.count);
  out.f64(message.scale);
  out.u8(message.begins ? 1 : 0);
  write_rule(out, message.rule);
  write_part(out, message.of);
}
void read(Reader& in, PushRows& message) {
  message.seq = in.varint("push_rows.seq", UINT64_MAX);
  message.table = static_cast<std::uint32_t>(in.varint("push_rows.table", kRowTablesMax - 1));
  message.count = in.varint("push_rows.count", kRowsAtOnceMax);
  message.scale = in.f64("push_rows.scale");
  message.begins = in.u8("push_rows.begins", 1) != 0;
  message.rule = read_rule(in);
  message.of = read_part(in);
}

void write(Writer& out, const TakeTask& message) {
  out.varint(message.done);
  out.u8(message.failed ? 1 : 0);
  write_text(out, message.text, kTaskTextBytesMax);
}
void read(Reader& in, TakeTask& message) {
  message.done = in.varint("take.done", UINT64_MAX);
  message.failed = in.u8("take.failed", 1) != 0;
  message.text = read_text(in, "take.text", kTaskTextBytesMax);
}

void write(Writer& out, const Schedule& message) {
  out.varint(message.task);
  out.varint(static_cast<std::uint64_t>(message.copies));
  write_text(out, message.call, kTaskTextBytesMax);
}
void read(Reader& in, Schedule& message) {
  message.task = in.varint("schedule.task", UINT64_MAX);
  message.copies = static_cast<std::int32_t>(in.varint("schedule.copies", kRanksMax));
  message.call = read_text(in, "schedule.call", kTaskTextBytesMax);
}

void write(Writer& out, const CloseTasks& message) {
  out.varint(message.tasks);
}
void read(Reader& in, CloseTasks& message) {
  message.tasks = in.varint("close.tasks", UINT64_MAX);
}

void write(Writer& out, const AskTask& message) {
  out.varint(message.task);
  out.u8(message.waits ? 1 : 0);
  out.varint(message.failures);
}
void read(Reader& in, AskTask& message) {
  message.task = in.varint("ask.task", UINT64_MAX);
  message.waits = in.u8("ask.waits", 1) != 0;
  message.failures = in.varint("ask.failures", UINT64_MAX);
}

void write(Writer& out, const Welcome& message) {
  out.varint(message.decided);
  out.varint(message.decided_rows);
  out.varint(message.scheduled);
  out.u8(message.keeps_state ? 1 : 0);
}
void read(Reader& in, Welcome& message) {
  message.decided = in.varint("welcome.decided", UINT64_MAX);
  message.decided_rows = in.varint("welcome.decided_rows", UINT64_MAX);
  message.scheduled = in.varint("welcome.scheduled", UINT64_MAX);
  message.keeps_state = in.u8("welcome.keeps_state", 1) != 0;
}

void write(Writer& out, const Refused& message) {
  out.u8(static_cast<std::uint8_t>(message.code));
  write_text(out, message.text, kErrorTextBytesMax);
}
void read(Reader& in, Refused& message) {
  message.code = static_cast<ErrorCode>(
      in.u8("refused.code", static_cast<std::uint8_t>(ErrorCode::kUnsupported)));
  message.text = read_text(in, "refused.text", kErrorTextBytesMax);
}

void write(Writer& out, const Ready& message) {
  out.varint(message.version);
  out.varint(message.clock);
  out.varint(message.checkpoint);
}
void read(Reader& in, Ready& message) {
  message.version = in.varint("ready.version", UINT64_MAX);
  message.clock = in.varint("ready.clock", UINT64_MAX);
  message.checkpoint = in.varint("ready.checkpoint", kCheckpointMax);
}

void write(Writer& out, const Ack& message) {
  out.varint(static_cast<std::uint64_t>(message.worker));
  out.varint(message.seq);
  out.u8(static_cast<std::uint8_t>(message.outcome));
  out.varint(message.version);
  out.varint(message.clock);
  out.varint(message.held_ns);
  out.varint(message.checkpoint);
}
void read(Reader& in, Ack& message) {
  message.worker = static_cast<Worker>(in.varint("ack.worker", kRanksMax - 1));
  message.seq = in.varint("ack.seq", UINT64_MAX);
  message.outcome = static_cast<Outcome>(in.u8("ack.outcome", kOutcomeCount - 1));
  message.version = in.varint("ack.version", UINT64_MAX);
  message.clock = in.varint("ack.clock", UINT64_MAX);
  message.held_ns = in.varint("ack.held_ns", UINT64_MAX);
  message.checkpoint = in.varint("ack.checkpoint", kCheckpointMax);
}

void write(Writer& out, const Averaged& message) {
  out.f64(message.mean);
  out.varint(message.workers);
}
void read(Reader& in, Averaged& message) {
  message.mean = in.f64("averaged.mean");
  message.workers = static_cast<std::uint32_t>(in.varint("averaged.workers", kRanksMax));
}

void write(Writer& out, const Stats& message) {
  for (const std::uint64_t value :
       {message.version, message.held_bytes, message.busy_ns, message.oldest_ns,
        message.gradient_bytes, message.parameter_bytes, message.pulls, message.lost}) {
    out.varint(value);
  }
  write_counts(out, message.outcomes);
  write_counts(out, message.staleness);
  out.varint(message.workers.size());
  for (const WorkerStats& worker : message.workers) {
    out.u8(worker.here ? 1 : 0);
    out.varint(worker.pushes);
    out.varint(worker.held_ns);
  }
}
void read(Reader& in, Stats& message) {
  for (std::uint64_t* value :
       {&message.version, &message.held_bytes, &message.busy_ns, &message.oldest_ns,
        &message.gradient_bytes, &message.parameter_bytes, &message.pulls, &message.lost}) {
    *value = in.varint("stats.value", UINT64_MAX);
  }
  message.outcomes = read_counts(in, "stats.outcomes");
  message.staleness = read_counts(in, "stats.staleness");
  message.workers.resize(in.count("stats.workers", kLocalRanksMax, 3));
  for (WorkerStats& worker : message.workers) {
    worker.here = in.u8("stats.here", 1) != 0;
    worker.pushes = in.varint("stats.pushes", UINT64_MAX);
    worker.held_ns = in.varint("stats.held_ns", UINT64_MAX);
  }
}

void write(Writer& out, const Given& message) {
  out.varint(message.task);
  out.varint(message.settled);
  write_text(out, message.call, kTaskTextBytesMax);
}
void read(Reader& in, Given& message) {
  message.task = in.varint("given.task", UINT64_MAX);
  message.settled = in.varint("given.settled", UINT64_MAX);
  message.call = read_text(in, "given.call", kTaskTextBytesMax);
}

void write(Writer& out, const TaskStatus& message) {
  out.varint(message.task);
  out.u8(message.done ? 1 : 0);
  out.u8(message.failed ? 1 : 0);
  out.varint(message.settled);
  write_text(out, message.text, kTaskTextBytesMax);
}
void read(Reader& in, TaskStatus& message) {
  message.task = in.varint("told.task", UINT64_MAX);
  message.done = in.u8("told.done", 1) != 0;
  message.failed = in.u8("told.failed", 1) != 0;
  message.settled = in.varint("told.settled", UINT64_MAX);
  message.text = read_text(in, "told.text", kTaskTextBytesMax);
}

void write(Writer& out, const VectorValues& message) {
  out.varint(message.dots.size());
  for (const double dot : message.dots) out.f64(dot);
}
void read(Reader& in, VectorValues& message) {
  message.dots.resize(in.count("values.dots", kVectorDotsMax, 8));
  for (double& dot : message.dots) dot = in.f64("values.dot");
}

// Messages without fields.
template <typename T>
requires std::is_empty_v<T>
void write(Writer&, const T&) {}
template <typename T>
requires std::is_empty_v<T>
void read(Reader&, T&) {}

}  // namespace

void encode(const Message& message, std::vector<std::byte>& out) {
  encode_kind(message, out, [](Writer& writer, const auto& kind) { write(writer, kind); });
}

Result<Message> decode_message(std::span<const std::byte> bytes) {
  return decode_kind<Message>(bytes, [](Reader& in, auto& kind) { read(in, kind); });
}

}  // namespace ciranda::ps
