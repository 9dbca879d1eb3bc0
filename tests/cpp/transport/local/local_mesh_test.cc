// What could break: a rank of a loopback that is connected to the wrong one, or to a copy of the
// control memory.
#include "core/transport/local/local_mesh.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "core/transport/local/control_block.h"

namespace ciranda {
namespace {

// Returns true if an access to `data` takes no page fault.
bool is_mapped(const std::byte* data) {
  const Fd pages(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  const auto page =
      reinterpret_cast<std::uintptr_t>(data) / static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  std::uint64_t entry = 0;
  EXPECT_EQ(::pread(pages.get(), &entry, sizeof entry, static_cast<off_t>(page * sizeof entry)),
            static_cast<ssize_t>(sizeof entry));
  return (entry >> 63) != 0;  // proc_pid_pagemap(5): the page is present
}

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

// A World of one rank stages nothing.
TEST(LocalMesh, RanksOfALoopbackMapStagingSlotsWithTheirFirstUse) {
  const std::vector<LocalMesh> meshes = make_loopback(1).value();
  const std::byte* const control = meshes[0].control.data();
  EXPECT_TRUE(is_mapped(control + ControlBlock::ready_bytes(1) - 1));
  EXPECT_FALSE(is_mapped(control + ControlBlock::memory_bytes(1) - 1));
}

}  // namespace
}  // namespace ciranda
