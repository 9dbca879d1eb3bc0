#include "core/ps/decide/journal.h"

#include <utility>

#include "core/base/assert.h"
#include "core/ps/decide/messages.h"
#include "core/ps/decide/model_codec.h"
#include "core/wire/codec.h"

namespace ciranda::ps {
namespace {

// Writes a part of a change as the message that brought it.
void write_message(Writer& out, const Message& message) {
  std::vector<std::byte> packet;
  encode(message, packet);
  out.varint(packet.size());
  out.bytes(packet);
}

template <typename T>
T read_message(Reader& in) {
  std::vector<std::byte> packet(in.count("change.push", kPacketBytesMax, 1));
  in.bytes("change.push", packet);
  if (!in.ok()) return {};
  auto message = decode_message(packet);
  if (message && std::holds_alternative<T>(message.value())) {
    return std::get<T>(std::move(message).value());
  }
  in.fail("change.push", message ? "is another message" : message.error().text);
  return {};
}

}  // namespace

void encode(const Change& change, std::vector<std::byte>& out) {
  Writer writer(out);
  writer.u8(static_cast<std::uint8_t>(change.kind));
  switch (change.kind) {
    case Change::Kind::kApplied:
      writer.f64(change.scale);
      writer.varint(change.pushes.size());
      for (const Push& push : change.pushes) write_message(writer, push);
      break;
    case Change::Kind::kSkipped:
      CIRANDA_ASSERT(change.pushes.size() == 1);
      writer.u8(static_cast<std::uint8_t>(change.outcome));
      write_message(writer, change.pushes.front());
      break;
    case Change::Kind::kEntered:
      writer.varint(static_cast<std::uint64_t>(change.worker));
      writer.varint(change.life);
      writer.u64(change.process);
      break;
    case Change::Kind::kLeft:
      writer.varint(static_cast<std::uint64_t>(change.worker));
      break;
    case Change::Kind::kScheduled:
      writer.varint(change.task);
      writer.varint(static_cast<std::uint64_t>(change.copies));
      write_text(writer, change.text, kTaskTextBytesMax);
      break;
    case Change::Kind::kTaskDone:
      writer.varint(change.task);
      writer.u8(change.failed ? 1 : 0);
      write_text(writer, change.text, kTaskTextBytesMax);
      break;
    case Change::Kind::kTasksClosed:
      writer.varint(change.task);
      break;
    case Change::Kind::kWorked:
      write(writer, change.work);
      break;
    case Change::Kind::kRows:
      writer.varint(static_cast<std::uint64_t>(change.worker));
      write_message(writer, change.rows);
      break;
    case Change::Kind::kResumed:
      write_text(writer, change.text, kJobIdBytesMax);
      break;
  }
}

Result<Change> decode_change(std::span<const std::byte> bytes) {
  Reader in(bytes);
  Change change;
  change.kind = static_cast<Change::Kind>(in.u8("change.kind", kChangeKindCount - 1));
  switch (change.kind) {
    case Change::Kind::kApplied:
      change.scale = in.f64("change.scale");
      change.pushes.resize(in.count("change.pushes", kLocalRanksMax, 2));
      for (Push& push : change.pushes) push = read_message<Push>(in);
      break;
    case Change::Kind::kSkipped:
      change.outcome = static_cast<Outcome>(in.u8("change.outcome", kOutcomeCount - 1));
      change.pushes.push_back(read_message<Push>(in));
      break;
    case Change::Kind::kEntered:
      change.worker = static_cast<Worker>(in.varint("change.worker", kLocalRanksMax));
      change.life = in.varint("change.life", UINT64_MAX);
      change.process = in.u64("change.process");
      break;
    case Change::Kind::kLeft:
      change.worker = static_cast<Worker>(in.varint("change.worker", kLocalRanksMax));
      break;
    case Change::Kind::kScheduled:
      change.task = in.varint("change.task", UINT64_MAX);
      change.copies = static_cast<std::int32_t>(in.varint("change.copies", kRanksMax));
      change.text = read_text(in, "change.call", kTaskTextBytesMax);
      break;
    case Change::Kind::kTaskDone:
      change.task = in.varint("change.task", UINT64_MAX);
      change.failed = in.u8("change.failed", 1) != 0;
      change.text = read_text(in, "change.text", kTaskTextBytesMax);
      break;
    case Change::Kind::kTasksClosed:
      change.task = in.varint("change.task", UINT64_MAX);
      break;
    case Change::Kind::kWorked:
      read(in, change.work);
      break;
    case Change::Kind::kRows:
      change.worker = static_cast<Worker>(in.varint("change.worker", kLocalRanksMax - 1));
      change.rows = read_message<PushRows>(in);
      break;
    case Change::Kind::kResumed:
      change.text = read_text(in, "change.job", kJobIdBytesMax);
      break;
  }
  if (in.ok() && in.remaining() > 0) in.fail("change", "goes on after its end");
  if (!in.ok()) return in.error();
  return change;
}

}  // namespace ciranda::ps
