#pragma once

#include <cstdint>
#include <optional>

#include "core/base/fd.h"
#include "core/base/result.h"

namespace ciranda {

// A message between ranks of a host, over the sockets of LocalMesh. Each one carries a descriptor
// of memory.
struct PeerMessage {
  // The kinds other than kSegment are used while hosts meet; their memory holds a payload
  // (host_speaker.cc).
  enum class Kind : std::uint32_t { kSegment = 1, kIntroduction = 2, kHostTable = 3, kRefused = 4 };
  Kind kind = Kind::kSegment;
  std::uint32_t segment = 0;  // kSegment: the sender's number of it; else bytes of the payload
  std::uint64_t bytes = 0;    // of the memory
};
Status send_message(int socket, const PeerMessage& message, int fd);
struct ReceivedMessage {
  PeerMessage message;
  Fd fd;
};
// Returns the next message, or nullopt if there is none. Never blocks. Returns kRankLost if the
// peer has closed the socket (the caller fills in the rank), kMalformed for anything but a message
// with one descriptor.
Result<std::optional<ReceivedMessage>> receive_message(int socket);

}  // namespace ciranda
