#include "core/transport/link/relay.h"

#include <algorithm>

#include "core/base/assert.h"
#include "core/wire/codec.h"

namespace ciranda {
namespace {

Error malformed(const ControlConnection& connection, const std::string& what) {
  return {.code = ErrorCode::kMalformed,
          .text = "rank " + std::to_string(connection.peer()) + " at " + connection.address() +
                  " sent " + what,
          .rank = connection.peer()};
}

constexpr std::size_t kQueuedBytesMax = kSealedPayloadBytesMax;  // in each connection's queue

}  // namespace

Relay::Relay(std::vector<ControlConnection> control, const Hosts& hosts, int host)
    : hosts_(hosts), host_(host) {
  CIRANDA_ASSERT(host >= 0 && static_cast<std::size_t>(host) < hosts.size());
  CIRANDA_ASSERT(control.size() == (at_centre() ? hosts.size() - 1 : 1));
  for (ControlConnection& connection : control) connections_.emplace_back(std::move(connection));
}

Status Relay::send(Rank from, std::span<const std::byte> frame) {
  CIRANDA_ASSERT(from >= 0 && frame.size() <= kFrameBytesMax);  // else the peer refuses it
  payload_.clear();
  Writer writer(payload_);
  writer.varint(static_cast<std::uint64_t>(from));
  writer.bytes(frame);
  Status result;
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    if (!connections_[i]) continue;
    Status sent = connections_[i]->send(static_cast<std::uint8_t>(Type::kFrame), payload_);
    if (sent || !result) continue;
    lost_host_ = host_of(i);
    result = std::move(sent);
  }
  return result;
}

bool Relay::has_room() const {
  return std::all_of(connections_.begin(), connections_.end(), [](const auto& connection) {
    return !connection || connection->queued_bytes() < kQueuedBytesMax;
  });
}

Result<bool> Relay::advance(const Take& take, std::size_t frames_max) {
  bool moved = false;
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    lost_host_ = host_of(i);
    if (!connections_[i]) continue;
    CIRANDA_TRY(connections_[i]->flush());
    for (; frames_max > 0; --frames_max) {
      auto frame = connections_[i]->receive();
      if (!frame) return frame.error();
      if (!frame.value()) break;
      moved = true;
      CIRANDA_TRY(open(i, *frame.value(), take));
    }
  }
  lost_host_ = -1;
  return moved;
}

Status Relay::check_answers(std::uint64_t limit_ms) {
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    lost_host_ = host_of(i);
    if (connections_[i]) CIRANDA_TRY(connections_[i]->check_answers(limit_ms));
  }
  lost_host_ = -1;
  return {};
}

void Relay::take_last_words(int host, const Take& take) {
  const std::size_t i = at_centre() ? static_cast<std::size_t>(host) - 1 : 0;
  CIRANDA_ASSERT(i < connections_.size() && host_of(i) == host);
  while (connections_[i]) {
    auto frame = connections_[i]->receive();
    if (!frame || !frame.value() || !open(i, *frame.value(), take)) break;
  }
}

Status Relay::open(std::size_t connection, const OpenedFrame& frame, const Take& take) {
  const ControlConnection& from_peer = *connections_[connection];
  Reader reader(frame.payload);
  if (frame.type == static_cast<std::uint8_t>(Type::kFrame)) {
    const auto from = static_cast<Rank>(reader.varint("relayed.from", kRanksMax - 1));
    if (!reader.ok()) return reader.error();
    if (at_centre()) {
      const std::vector<Rank>& there = hosts_[static_cast<std::size_t>(host_of(connection))];
      if (std::find(there.begin(), there.end(), from) == there.end()) {
        return malformed(from_peer,
                         "a frame of rank " + std::to_string(from) + ", which is not on its host");
      }
    }
    const auto bytes = frame.payload.subspan(reader.offset());
    if (bytes.size() > kFrameBytesMax) return malformed(from_peer, "a frame that is too long");
    return take(from, bytes);
  }
  if (frame.type == static_cast<std::uint8_t>(Type::kFailure)) {
    Error why;
    why.code = static_cast<ErrorCode>(
        reader.varint("failure.code", static_cast<std::uint64_t>(ErrorCode::kUnsupported)));
    why.rank = static_cast<Rank>(reader.varint("failure.rank", kRanksMax)) - 1;
    const std::size_t bytes = reader.count("failure.text", kErrorTextBytesMax, 1);
    why.text = std::string(reader.text("failure.text", bytes));
    if (!reader.ok()) return reader.error();
    if (!reported_failure_) reported_failure_ = std::move(why);
    if (at_centre()) forward_failure(frame.payload, connection);
    return {};
  }
  return malformed(from_peer, "a frame of the unknown type " + std::to_string(frame.type));
}

void Relay::forward_failure(std::span<const std::byte> payload, std::size_t except) {
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    if (i == except || !connections_[i]) continue;
    (void)connections_[i]->send(static_cast<std::uint8_t>(Type::kFailure), payload);
  }
}

void Relay::tell_failure(const Error& why) {
  payload_.clear();
  Writer writer(payload_);
  const std::size_t bytes = std::min(why.text.size(), kErrorTextBytesMax);
  writer.varint(static_cast<std::uint64_t>(why.code));
  writer.varint(static_cast<std::uint64_t>(std::int64_t{why.rank} + 1));
  writer.varint(bytes);
  writer.text(std::string_view(why.text).substr(0, bytes));
  forward_failure(payload_, connections_.size());
}

void Relay::part_with(int host) {
  CIRANDA_ASSERT(at_centre() ? host >= 1 && host_of(connections_.size()) > host : host == 0);
  connections_[at_centre() ? static_cast<std::size_t>(host) - 1 : 0].reset();
}

void Relay::watched(std::vector<Watched>& out, bool wanted) const {
  for (const auto& connection : connections_) {
    if (!connection) continue;
    out.push_back(
        {.socket = connection->fd(), .readable = wanted, .writable = connection->has_queued()});
  }
}

void Relay::close_all() noexcept {
  for (auto& connection : connections_) {
    if (connection) connection->close();
  }
}

bool Relay::alone() const {
  return std::none_of(connections_.begin(), connections_.end(),
                      [](const auto& connection) { return connection.has_value(); });
}

bool Relay::idle() const {
  return std::none_of(connections_.begin(), connections_.end(), [](const auto& connection) {
    return connection && connection->has_queued();
  });
}

}  // namespace ciranda
