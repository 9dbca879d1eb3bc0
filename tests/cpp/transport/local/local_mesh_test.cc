// What could break: a rank of a loopback that is connected to the wrong one, or to a copy of the
// control memory.
#include "core/transport/local/local_mesh.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace ciranda {
namespace {

TEST(LocalMesh, RanksOfALoopbackReachEachOther) {
  std::vector<LocalMesh> meshes = make_loopback(3).value();
  const Fd fd = MemorySegment::create(4096).value().fd;
  for (std::size_t from = 0; from < 3; ++from) {
    for (std::size_t to = 0; to < 3; ++to) {
      if (from == to) continue;
      const auto number = static_cast<std::uint32_t>(10 * from + to);
      ASSERT_TRUE(send_message(meshes[from].peers[to].socket.get(),
                               {.segment = number, .bytes = 4096}, fd.get())
                      .ok());
      const auto received = receive_message(meshes[to].peers[from].socket.get());
      ASSERT_TRUE(received.ok() && received.value().has_value());
      EXPECT_EQ(received.value()->message.segment, number);
    }
  }
}

TEST(LocalMesh, RanksOfALoopbackShareControlMemoryAndDoorbells) {
  std::vector<LocalMesh> meshes = make_loopback(2).value();
  meshes[0].control.data()[100] = std::byte{9};
  EXPECT_EQ(meshes[1].control.data()[100], std::byte{9});
  const std::uint64_t ring = 7;
  ASSERT_EQ(::write(meshes[0].peers[1].doorbell.get(), &ring, sizeof ring), sizeof ring);
  std::uint64_t heard = 0;
  ASSERT_EQ(::read(meshes[1].peers[1].doorbell.get(), &heard, sizeof heard), sizeof heard);
  EXPECT_EQ(heard, ring);
}

}  // namespace
}  // namespace ciranda
