// Through TLS nobody passes for a rank without what one would say, and what comes out is what went
// in, in order, up to the first byte that was changed.
#include <algorithm>
#include <utility>

#include "fuzz/input.h"
#include "fuzz/recorded_tls.h"

namespace ciranda::fuzz {
namespace {

constexpr std::size_t kRecordHeaderBytes = 5;
constexpr std::size_t kRecordOverheadBytes = kRecordHeaderBytes + 1 + 16;  // its type and its seal
constexpr std::size_t kAlertBytes = kRecordHeaderBytes + 2;
// A server may ask a client for a second one.
constexpr std::size_t kHelloBytesMax = 512;

const Conversation& recorded() {
  static const Conversation kRecorded = record(tls(), tls());
  return kRecorded;
}

struct Script {
  Role role;  // of the side that is tried
  std::size_t piece;
  Input input;
};

void listen_to_a_stranger(Script script) {
  const auto session = begin(script.role, tls());
  const std::size_t taken = shake(*session, script.input.rest(), script.piece);
  CIRANDA_ASSERT(!session->established());
  CIRANDA_ASSERT(taken <= TlsSession::kHandshakeBytesMax + script.piece);
  CIRANDA_ASSERT(session->outgoing().size() <=
                 kAlertBytes + (script.role == Role::kCaller ? 2 * kHelloBytesMax : 0));
}

// All but the version in the header of the first record, which nobody may look at (RFC 8446, 5.1).
std::span<const std::byte> judged(const Bytes& flight) {
  return std::span(flight).subspan(3);
}

void change_what_a_rank_says(Script script) {
  const Bytes& honest = recorded().of(other(script.role)).handshake;
  Bytes said = honest;
  script.input.patch(said);
  const auto session = begin(script.role, tls());
  (void)shake(*session, said, script.piece);
  const bool is_same = said[0] == honest[0] && std::ranges::equal(judged(said), judged(honest));
  CIRANDA_ASSERT(is_same || !session->established());
  CIRANDA_ASSERT(said != honest || session->established());
}

struct Opened {
  Bytes bytes;
  bool ok = true;
};

Opened open(TlsSession& session, std::span<const std::byte> wire, std::size_t piece) {
  Opened opened;
  std::array<std::byte, 64> buffer;
  while (!wire.empty()) {
    std::span<const std::byte> some = wire.first(std::min(piece, wire.size()));
    wire = wire.subspan(some.size());
    for (std::size_t count = 1; count > 0;) {
      const auto result = session.open(some, buffer);
      opened.ok = result.ok();
      if (!opened.ok) return opened;
      count = result.value();
      opened.bytes.insert(opened.bytes.end(), buffer.begin(), buffer.begin() + count);
    }
    CIRANDA_ASSERT(some.empty());
  }
  return opened;
}

// The script: how many records, which ones (or bytes that are none), and bits to flip in them.
void change_what_follows(Script script) {
  const Recording& peer = recorded().of(other(script.role));
  const auto append = [](Bytes& bytes, std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
  };
  Bytes wire;
  for (int pieces = script.input.u8() % 16; pieces > 0; --pieces) {
    const std::size_t which = script.input.u8();
    if (which < peer.records.size()) {
      append(wire, peer.records[which].sealed);
    } else {
      append(wire, script.input.bytes(script.input.u8()));
    }
  }
  script.input.patch(wire);

  Bytes honest;
  for (const Recording::Record& record : peer.records) append(honest, record.sealed);
  const std::size_t same =
      static_cast<std::size_t>(std::ranges::mismatch(wire, honest).in1 - wire.begin());
  Bytes said;
  bool must_end = false;  // a whole record came, and more of it was changed than its header
  std::size_t end = 0;
  for (const Recording::Record& record : peer.records) {
    const std::size_t begin = std::exchange(end, end + record.sealed.size());
    if (end <= same) append(said, record.said);
    const bool is_alone = record.sealed.size() == record.said.size() + kRecordOverheadBytes;
    must_end |= is_alone && begin + kRecordHeaderBytes <= same && same < end && end <= wire.size();
  }

  const auto session = begin(script.role, tls());
  (void)shake(*session, peer.handshake, peer.handshake.size());
  CIRANDA_ASSERT(session->established());
  const std::size_t answered = session->outgoing().size();
  const Opened opened = open(*session, wire, script.piece);
  CIRANDA_ASSERT(opened.bytes == said);
  CIRANDA_ASSERT(opened.ok ? !must_end : same < wire.size());
  CIRANDA_ASSERT(session->outgoing().size() <= answered + 2 + kRecordOverheadBytes);  // an alert
}

}  // namespace
}  // namespace ciranda::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ciranda::fuzz;
  Input input(data, size);
  const std::uint8_t what = input.u8();
  const std::size_t piece = 1u + input.u8();
  const Script script{what % 2 == 0 ? Role::kListener : Role::kCaller, piece, input};
  switch (what / 2 % 3) {
    case 0:
      listen_to_a_stranger(script);
      break;
    case 1:
      change_what_a_rank_says(script);
      break;
    default:
      change_what_follows(script);
  }
  return 0;
}
