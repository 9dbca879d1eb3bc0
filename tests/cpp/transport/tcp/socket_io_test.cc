// What could break: a packet cut in half that is taken for a whole one, a closed socket for
// silence.
#include "core/transport/tcp/socket_io.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

namespace ciranda {
namespace {

TEST(SocketIo, APacketThatDoesNotFitIsRefused) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const Fd a(ends[0]);
  Fd b(ends[1]);
  const std::vector<std::byte> large(100);
  ASSERT_TRUE(send_packet(a.get(), large, {}).ok());
  std::vector<std::byte> small(10);
  EXPECT_FALSE(receive_packet(b.get(), small).ok());
  b.reset();
  EXPECT_FALSE(send_packet(a.get(), large, {}).ok());
}

TEST(SocketIo, AClosedSocketIsNoPacket) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  const Fd a(ends[0]);
  Fd b(ends[1]);
  std::vector<std::byte> buffer(10);
  EXPECT_EQ(receive_packet(a.get(), buffer).value().what, Received::kNothing);
  b.reset();
  EXPECT_EQ(receive_packet(a.get(), buffer).value().what, Received::kClosed);
}

}  // namespace
}  // namespace ciranda
