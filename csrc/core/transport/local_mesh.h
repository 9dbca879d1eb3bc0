#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/transport/fd.h"
#include "core/transport/memory_segment.h"
#include "core/wire/types.h"

namespace ciranda {

// What connects this rank to the other ranks of its host: a socket and a doorbell to each, and
// the shared control memory. Sockets carry memory descriptors, and their end tells of a death.
struct LocalMesh {
  struct Peer {
    Fd socket;    // SOCK_SEQPACKET, non-blocking; invalid for the rank itself
    Fd doorbell;  // eventfd on which the peer's background thread sleeps
    pid_t pid = 0;
  };
  Rank self = 0;
  int size = 1;
  MemorySegment control;    // ControlBlock::memory_bytes(size)
  std::vector<Peer> peers;  // by rank; peers[self].doorbell is this rank's own
};

// Blocking; at most `timeout_ms`. The ranks of one job and host meet at the Unix socket
// `folder`/local, which rank 0 makes; `folder` must be private (mode 0700, same user), is created
// when missing, and the socket is unlinked as soon as all are connected: nothing is left behind.
// Rank 0 refuses a wrong size, a rank that came twice, another job, version, user or setting, and
// says so to every rank. A second rank 0 is refused as long as the first waits in the folder.
struct UnixJoin {
  std::string folder;
  std::string job_id;
  Rank rank = 0;
  int size = 1;
  std::uint64_t timeout_ms = 30'000;
  std::string settings = {};  // see wire/settings.h; of all ranks, where all are on this host
};
Result<LocalMesh> join_unix(const UnixJoin& join);

// `size` ranks inside this process, for tests and for programs that run ranks as threads. The
// control memory is mapped once and shared.
Result<std::vector<LocalMesh>> make_loopback(int size);

// Messages between the ranks of a host, with an optional descriptor.
struct PeerMessage {
  // While hosts meet, a segment holds a letter: see remote_mesh.cc.
  enum class Kind : std::uint32_t { kSegment = 1, kIntroduction = 2, kRoll = 3, kRefused = 4 };
  Kind kind = Kind::kSegment;
  std::uint32_t segment = 0;  // kSegment: the sender's number for it; else the letter's bytes
  std::uint64_t bytes = 0;
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
