#include "core/backend/ring/ring_exchange.h"

#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "core/base/assert.h"

namespace ciranda {
namespace {

std::string to_text(const DataHeader& header) {
  return std::to_string(header.bytes) + " bytes as step " + std::to_string(header.step) +
         " of operation " + std::to_string(header.operation);
}

// A header and its payload, without the first `done` bytes, which have been transferred.
struct Pieces {
  Pieces(std::byte* header, std::byte* payload, std::size_t payload_bytes, std::size_t done) {
    const std::size_t of_header = std::min(done, kDataHeaderBytes);
    const std::size_t of_payload = done - of_header;
    parts[0] = {.iov_base = header + of_header, .iov_len = kDataHeaderBytes - of_header};
    parts[1] = {.iov_base = payload + of_payload, .iov_len = payload_bytes - of_payload};
  }
  iovec parts[2];
};

Error about(const DataLink& link, Error why) {
  why.text = "rank " + std::to_string(link.peer) + " at " + link.address + ": " + why.text;
  why.rank = link.peer;
  if (why.code == ErrorCode::kSystem) why.code = ErrorCode::kRankLost;
  return why;
}

bool may_send(RingOperation& op, RingChannel& channel, const Send& send) {
  if (channel.receives < send.after_receives) return false;
  op.make_chunks(channel, send.after_chunks);
  return true;
}

}  // namespace

Result<bool> RingExchange::advance(RingOperation& op, RingChannel& channel) {
  bool moved = false;
  for (bool more = true; more; moved |= more) {
    const auto sent = send(op, channel);
    if (!sent) return sent.error();
    const auto received = receive(op, channel);
    if (!received) return received.error();
    more = sent.value() || received.value();
  }
  return moved;
}

// Watches only what the operation waits for: a peer may be ahead, and its bytes stay in the socket.
void RingExchange::watched(const RingOperation& op, std::vector<Watched>& out) const {
  const Schedule& schedule = op.schedule();
  for (const RingChannel& channel : op.channels()) {
    if (channel.receives < schedule.steps()) {
      const Receive receive = schedule.step(channel.index, channel.receives).receive;
      if (receive.piece.bytes > 0 && receive.from != schedule.layout().self) {
        const DataLink* const peer = link(op, channel, receive.from);
        if (peer != nullptr) out.push_back({.socket = peer->stream.fd(), .readable = true});
      }
    }
    if (channel.wants_room) {
      const Send send = schedule.step(channel.index, channel.sends).send;
      const DataLink* const peer = link(op, channel, send.to);
      CIRANDA_ASSERT(peer != nullptr);  // a message to it has begun
      out.push_back({.socket = peer->stream.fd(), .writable = true});
    }
  }
}

Result<bool> RingExchange::send(RingOperation& op, RingChannel& channel) {
  const Schedule& schedule = op.schedule();
  bool moved = false;
  for (; channel.sends < schedule.steps(); ++channel.sends, moved = true) {
    const Send send = schedule.step(channel.index, channel.sends).send;
    if (send.piece.bytes == 0 || send.to == schedule.layout().self) continue;
    if (!may_send(op, channel, send)) break;
    DataLink* const found = link(op, channel, send.to);
    if (found == nullptr) break;  // it is being made
    DataLink& peer = *found;
    const std::uint64_t bytes = schedule.message_bytes(send.piece);
    const bool begins = channel.sent_bytes == 0 && !std::exchange(channel.wants_room, false);
    std::byte* const payload = op.payload(channel, send.piece, begins);
    if (begins) {
      channel.header_out = peer.sealer.seal({.bytes = static_cast<std::uint32_t>(bytes),
                                             .step = channel.sends,
                                             .operation = op.number()},
                                            {payload, authenticates_ ? bytes : 0});
    }
    Pieces pieces(channel.header_out.data(), payload, bytes, channel.sent_bytes);
    const auto sent = peer.stream.send(pieces.parts);
    if (!sent) return about(peer, sent.error());
    channel.sent_bytes += sent.value();
    moved = moved || sent.value() > 0;
    channel.wants_room = channel.sent_bytes < kDataHeaderBytes + bytes;
    if (channel.wants_room) break;
    channel.sent_bytes = 0;
  }
  return moved;
}

Result<bool> RingExchange::receive(RingOperation& op, RingChannel& channel) {
  const Schedule& schedule = op.schedule();
  bool moved = false;
  for (; channel.receives < schedule.steps(); ++channel.receives, moved = true) {
    const Step step = schedule.step(channel.index, channel.receives);
    const Receive& receive = step.receive;
    if (receive.piece.bytes == 0) continue;
    if (receive.from == schedule.layout().self) {
      if (!may_send(op, channel, step.send)) break;
      CIRANDA_ASSERT(!op.op().wire_dtype);  // an operation with a wire dtype has peers
      op.apply(channel, step, op.place(channel, step.send.piece));
      continue;
    }
    bool complete = false;
    const auto read = read_message(op, channel, receive, complete);
    if (!read) return read.error();
    moved |= read.value();
    if (!complete || channel.sends < receive.after_sends) break;
    op.make_chunks(channel, receive.after_chunks);
    op.apply(channel, step, op.landing(channel, receive));
    channel.received_bytes = 0;
  }
  return moved;
}

Result<bool> RingExchange::read_message(RingOperation& op, RingChannel& channel,
                                        const Receive& receive, bool& complete) {
  const std::uint64_t bytes = op.schedule().message_bytes(receive.piece);
  const std::uint64_t whole = kDataHeaderBytes + bytes;
  bool moved = false;
  DataLink* const found = link(op, channel, receive.from);
  if (found == nullptr) return false;  // it is being made
  DataLink& peer = *found;
  std::byte* const to = op.landing(channel, receive);
  const DataHeader expected = {.bytes = static_cast<std::uint32_t>(bytes),
                               .step = channel.receives,
                               .operation = op.number()};
  while (channel.received_bytes < whole) {
    Pieces pieces(channel.header_in.data(), to, bytes, channel.received_bytes);
    const auto got = peer.stream.receive(pieces.parts);
    if (!got) return about(peer, got.error());
    if (got.value() == 0) return moved;
    moved = true;
    const bool had_header = channel.received_bytes >= kDataHeaderBytes;
    channel.received_bytes += got.value();
    if (!had_header && channel.received_bytes >= kDataHeaderBytes) {
      const auto header = peer.opener.open(channel.header_in);
      if (!header) return about(peer, header.error());
      if (header.value() != expected) {
        return about(peer, {.code = ErrorCode::kMalformed,
                            .text = "it sent " + to_text(header.value()) + " where " +
                                    to_text(expected) + " were expected"});
      }
    }
  }
  if (moved && authenticates_) {
    const Status unchanged = peer.opener.check({to, bytes});
    if (!unchanged) return about(peer, unchanged.error());
  }
  complete = true;
  return moved;
}

void RingExchange::call_peers(const RingOperation& op) {
  const Schedule& schedule = op.schedule();
  for (const RingChannel& channel : op.channels()) {
    for (std::uint32_t i = 0; i < schedule.steps(); ++i) {
      const Step step = schedule.step(channel.index, i);
      for (const auto& [peer, bytes] : {std::pair{step.send.to, step.send.piece.bytes},
                                        std::pair{step.receive.from, step.receive.piece.bytes}}) {
        if (bytes > 0 && peer != schedule.layout().self) (void)link(op, channel, peer);
      }
    }
  }
}

DataLink* RingExchange::link(const RingOperation& op, const RingChannel& channel,
                             int participant) const {
  const auto index = static_cast<std::size_t>(op.plan().rank(participant, channel.index));
  CIRANDA_ASSERT(index < op.members().ranks.size());
  return links_.find(op.members().ranks[index], op.plan().stream(channel.index));
}

}  // namespace ciranda
