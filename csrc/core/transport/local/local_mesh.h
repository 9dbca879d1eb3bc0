#pragma once

#include <sys/types.h>

#include <memory>
#include <vector>

#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/transport/local/job_folder.h"
#include "core/transport/local/memory_segment.h"
#include "core/transport/local/peer_message.h"  // what the sockets carry
#include "core/wire/types.h"

namespace ciranda {

// Connects this rank to the other ranks of its host: a socket and a doorbell for each peer, and the
// shared control memory. The sockets carry descriptors of memory; the end of a socket reports the
// peer's death.
struct LocalMesh {
  struct Peer {
    Fd socket;    // SOCK_SEQPACKET, non-blocking; invalid for the rank itself
    Fd doorbell;  // eventfd on which the peer's background thread sleeps
    pid_t pid = 0;
  };
  Rank self = 0;
  int size = 1;
  MemorySegment control;             // ControlBlock::memory_bytes(size)
  std::vector<Peer> peers;           // by rank; peers[self].doorbell is this rank's own
  std::unique_ptr<JobFolder> place;  // rank 0: the folder of the meeting, locked against other jobs
};

// Creates an eventfd for Peer::doorbell.
Result<Fd> make_doorbell();

// Creates the meshes of `size` ranks inside this process, for tests and for programs that run ranks
// as threads. The control memory is mapped once and shared.
Result<std::vector<LocalMesh>> make_loopback(int size);

}  // namespace ciranda
