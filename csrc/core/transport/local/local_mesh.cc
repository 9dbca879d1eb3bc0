#include "core/transport/local/local_mesh.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "core/transport/local/control_block.h"
#include "core/transport/tcp/socket_io.h"

namespace ciranda {

Result<Fd> make_doorbell() {
  Fd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) return Error::from_errno("eventfd", errno);
  return fd;
}

Result<std::vector<LocalMesh>> make_loopback(int size) {
  CIRANDA_ASSERT(size >= 1 && size <= kLocalRanksMax);
  auto control =
      MemorySegment::create(ControlBlock::memory_bytes(size), ControlBlock::ready_bytes(size));
  if (!control) return control.error();
  std::vector<LocalMesh> meshes(static_cast<std::size_t>(size));
  std::vector<Fd> doorbells;
  for (int rank = 0; rank < size; ++rank) {
    auto doorbell = make_doorbell();
    if (!doorbell) return doorbell.error();
    doorbells.push_back(std::move(doorbell).value());
    LocalMesh& mesh = meshes[static_cast<std::size_t>(rank)];
    mesh.self = rank;
    mesh.size = size;
    mesh.control = control.value().segment;
    mesh.peers.resize(static_cast<std::size_t>(size));
  }
  for (std::size_t a = 0; a < meshes.size(); ++a) {
    for (std::size_t b = 0; b < meshes.size(); ++b) {
      meshes[a].peers[b].pid = ::getpid();
      meshes[a].peers[b].doorbell = Fd(::fcntl(doorbells[b].get(), F_DUPFD_CLOEXEC, 3));
      if (!meshes[a].peers[b].doorbell.valid()) return Error::from_errno("dup", errno);
      if (b <= a) continue;
      auto pair = make_packet_sockets();
      if (!pair) return pair.error();
      meshes[a].peers[b].socket = std::move(pair.value()[0]);
      meshes[b].peers[a].socket = std::move(pair.value()[1]);
    }
  }
  return meshes;
}

}  // namespace ciranda
