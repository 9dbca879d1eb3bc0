#include "core/transport/local/peer_message.h"

#include <span>

#include "core/base/assert.h"
#include "core/transport/tcp/socket_io.h"

namespace ciranda {

Status send_message(int socket, const PeerMessage& message, int fd) {
  CIRANDA_ASSERT(fd >= 0 && message.bytes > 0);  // by MemorySegment::create()
  const int fds[] = {fd};
  return send_packet(socket, std::as_bytes(std::span(&message, 1)), fds);
}

Result<std::optional<ReceivedMessage>> receive_message(int socket) {
  ReceivedMessage received;
  auto packet = receive_packet(socket, std::as_writable_bytes(std::span(&received.message, 1)));
  if (!packet) return packet.error();
  switch (packet.value().what) {
    case Received::kNothing:
      return std::optional<ReceivedMessage>();
    case Received::kClosed:
      return Error{.code = ErrorCode::kRankLost, .text = "the peer closed its socket"};
    case Received::kPacket:
      break;
  }
  if (packet.value().bytes != sizeof(PeerMessage) || packet.value().fds.size() != 1) {
    return Error{.code = ErrorCode::kMalformed, .text = "a local rank sent an invalid message"};
  }
  received.fd = std::move(packet.value().fds[0]);
  return std::optional<ReceivedMessage>(std::move(received));
}

}  // namespace ciranda
