#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/ps/decide/messages.h"
#include "core/transport/link/message_link.h"
#include "core/transport/tcp/socket_io.h"

// Receive the next message of a link; both ends use these. They return nothing if no message has
// arrived yet, and kMalformed for invalid bytes. They never block.
namespace ciranda::ps {

inline Error lost(const char* who_is_gone) {
  return {.code = ErrorCode::kRankLost, .text = who_is_gone};
}

// Reads a packet into `packet`, and its descriptors into `descriptors`. kRankLost, with the text
// `who_is_gone`, if the peer is gone.
inline Result<std::optional<Message>> receive_message(int socket, std::span<std::byte> packet,
                                                      std::vector<Fd>& descriptors,
                                                      const char* who_is_gone) {
  auto received = receive_packet(socket, packet);
  if (!received || received.value().what == Received::kClosed) return lost(who_is_gone);
  if (received.value().what == Received::kNothing) return std::optional<Message>();
  descriptors = std::move(received.value().fds);
  auto message = decode_message(packet.first(received.value().bytes));
  if (!message) return message.error();
  return std::optional(std::move(message).value());
}

// The message's data has to be received afterwards (MessageLink::expect).
inline Result<std::optional<Message>> receive_message(MessageLink& link) {
  const auto bytes = link.receive_message();
  if (!bytes) return bytes.error();
  if (!bytes.value()) return std::optional<Message>();
  auto message = decode_message(*bytes.value());
  if (!message) return message.error();
  return std::optional(std::move(message).value());
}

}  // namespace ciranda::ps
