#include "core/member/messages.h"

#include <limits>
#include <utility>

#include "core/base/assert.h"
#include "core/wire/codec.h"
#include "core/wire/kinds.h"
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

void write(Writer& out, const Died& message) {
  out.varint(message.who);
}
void read(Reader& in, Died& message) {
  message.who = read_number(in, "died.who");
}

void write(Writer& out, const LeftEarly& message) {
  out.varint(message.who);
  out.varint(message.epoch);
  out.varint(message.step);
}
void read(Reader& in, LeftEarly& message) {
  message.who = read_number(in, "left_early.who");
  message.epoch = read_number(in, "left_early.epoch");
  message.step = in.varint("left_early.step", std::numeric_limits<std::uint64_t>::max());
}

void write(Writer& out, const Unreachable& message) {
  out.varint(message.who);
  out.varint(message.epoch);
}
void read(Reader& in, Unreachable& message) {
  message.who = read_number(in, "unreachable.who");
  message.epoch = read_number(in, "unreachable.epoch");
}

void write(Writer& out, const NewEpoch& message) {
  out.varint(message.number);
  out.u8(message.planned ? 1 : 0);
  out.varint(message.members.size());
  for (const Incarnation member : message.members) out.varint(member);
  CIRANDA_ASSERT(message.hosts.empty() || message.hosts.size() == message.members.size());
  CIRANDA_ASSERT(message.meet_at.size() <= kMeetAtBytesMax);
  out.varint(message.hosts.size());
  for (const HostNumber host : message.hosts) out.varint(host);
  out.varint(message.meet_at.size());
  out.text(message.meet_at);
}
void read(Reader& in, NewEpoch& message) {
  message.number = read_number(in, "new_epoch.number");
  message.planned = in.u8("new_epoch.planned", 1) != 0;
  message.members.resize(in.count("new_epoch.members", kLocalRanksMax, 1));
  if (message.members.empty()) in.fail("new_epoch.members", "is zero");
  for (Incarnation& member : message.members) member = read_number(in, "new_epoch.member");
  message.hosts.resize(in.count("new_epoch.hosts", message.members.size(), 1));
  for (HostNumber& host : message.hosts) {
    host = static_cast<HostNumber>(in.varint("new_epoch.host", kRanksMax - 1));
  }
  if (!message.hosts.empty() && message.hosts.size() != message.members.size()) {
    in.fail("new_epoch.hosts", "has another number of members");
  }
  message.meet_at = in.text("new_epoch.meet_at", in.count("new_epoch.meet_at", kMeetAtBytesMax, 1));
}

void write(Writer&, const Over&) {}
void read(Reader&, Over&) {}

template <typename Message>
std::vector<std::byte> encode_any(const Message& message) {
  std::vector<std::byte> bytes;
  encode_kind(message, bytes, [](Writer& out, const auto& kind) { write(out, kind); });
  return bytes;
}

template <typename Message>
Result<Message> decode_any(std::span<const std::byte> bytes) {
  return decode_kind<Message>(bytes, [](Reader& in, auto& kind) { read(in, kind); });
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
