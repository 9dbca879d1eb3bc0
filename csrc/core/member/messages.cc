#include "core/member/messages.h"

#include <limits>
#include <utility>

#include "core/wire/codec.h"
#include "core/wire/types.h"

namespace ciranda::member {
namespace {

constexpr std::uint64_t kNumberMax = std::numeric_limits<std::uint32_t>::max();

std::uint32_t read_number(Reader& in, const char* field) {
  const auto number = static_cast<std::uint32_t>(in.varint(field, kNumberMax));
  if (number == 0) in.fail(field, "is zero");
  return number;
}

void write(Writer&, const Ready&) {}
void read(Reader&, Ready&) {}

void write(Writer& out, const Formed& message) {
  out.varint(message.epoch);
  out.varint(message.step);
}
void read(Reader& in, Formed& message) {
  message.epoch = read_number(in, "formed.epoch");
  message.step = in.varint("formed.step", std::numeric_limits<std::uint64_t>::max());
}

void write(Writer& out, const AtEnd& message) {
  out.varint(message.since);
}
void read(Reader& in, AtEnd& message) {
  message.since = static_cast<EpochNumber>(in.varint("at_end.since", kNumberMax));
}

void write(Writer&, const Beat&) {}
void read(Reader&, Beat&) {}

void write(Writer& out, const NewEpoch& message) {
  out.varint(message.number);
  out.u8(message.planned ? 1 : 0);
  out.varint(message.members.size());
  for (const Incarnation member : message.members) out.varint(member);
}
void read(Reader& in, NewEpoch& message) {
  message.number = read_number(in, "new_epoch.number");
  message.planned = in.u8("new_epoch.planned", 1) != 0;
  message.members.resize(in.count("new_epoch.members", kLocalRanksMax, 1));
  if (message.members.empty()) in.fail("new_epoch.members", "is zero");
  for (Incarnation& member : message.members) member = read_number(in, "new_epoch.member");
}

void write(Writer&, const Over&) {}
void read(Reader&, Over&) {}

// A message is the index of its kind, then its fields.
template <typename Message>
std::vector<std::byte> encode_any(const Message& message) {
  std::vector<std::byte> bytes;
  Writer out(bytes);
  out.u8(static_cast<std::uint8_t>(message.index()));
  std::visit([&](const auto& each) { write(out, each); }, message);
  return bytes;
}

template <typename Message, std::size_t kIndex = 0>
Message message_at(Reader& in, std::size_t index) {
  if constexpr (kIndex + 1 < std::variant_size_v<Message>) {
    if (index != kIndex) return message_at<Message, kIndex + 1>(in, index);
  }
  std::variant_alternative_t<kIndex, Message> message;
  read(in, message);
  return message;
}

template <typename Message>
Result<Message> decode_any(std::span<const std::byte> bytes) {
  Reader in(bytes);
  const std::size_t index = in.u8("message", std::variant_size_v<Message> - 1);
  if (!in.ok()) return in.error();
  Message message = message_at<Message>(in, index);
  if (in.ok() && in.remaining() > 0) in.fail("message", "goes on after its end");
  if (!in.ok()) return in.error();
  return message;
}

}  // namespace

std::vector<std::byte> encode(const FromRank& message) {
  return encode_any(message);
}

std::vector<std::byte> encode(const FromArbiter& message) {
  return encode_any(message);
}

Result<FromRank> decode_from_rank(std::span<const std::byte> bytes) {
  return decode_any<FromRank>(bytes);
}

Result<FromArbiter> decode_from_arbiter(std::span<const std::byte> bytes) {
  return decode_any<FromArbiter>(bytes);
}

}  // namespace ciranda::member
