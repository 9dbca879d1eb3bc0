#pragma once

#include <cstdint>
#include <optional>

#include "core/base/fd.h"
#include "core/base/result.h"

namespace ciranda {

// Messages between the ranks of a host, over the sockets of LocalMesh: each brings a descriptor of
// memory.
struct PeerMessage {
  // While hosts meet, the memory holds a payload: see host_speaker.cc.
  enum class Kind : std::uint32_t { kSegment = 1, kIntroduction = 2, kHostTable = 3, kRefused = 4 };
  Kind kind = Kind::kSegment;
  std::uint32_t segment = 0;  // kSegment: the sender's number for it; else the payload's bytes
  std::uint64_t bytes = 0;    // of the memory
};
Status send_message(int socket, const PeerMessage& message, int fd);
// Non-blocking. nullopt: nothing there. kRankLost: the peer closed the socket (the caller fills
// in the rank).
struct ReceivedMessage {
  PeerMessage message;
  Fd fd;
};
Result<std::optional<ReceivedMessage>> receive_message(int socket);

}  // namespace ciranda
