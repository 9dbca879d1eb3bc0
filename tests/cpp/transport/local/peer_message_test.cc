// What could break: bytes of a peer that are taken for a message, silence that is taken for an end.
#include "core/transport/local/peer_message.h"

#include <gtest/gtest.h>

#include "core/transport/local/memory_segment.h"
#include "core/transport/tcp/socket_io.h"

namespace ciranda {
namespace {

TEST(PeerMessage, ArrivesWithItsMemory) {
  const auto ends = std::move(make_packet_sockets()).value();
  const auto memory = MemorySegment::create(4096).value();
  memory.segment.data()[5] = std::byte{7};
  ASSERT_TRUE(send_message(ends[0].get(), {.segment = 3, .bytes = 4096}, memory.fd.get()).ok());
  auto received = std::move(receive_message(ends[1].get())).value();
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->message.segment, 3u);
  const auto mapped = MemorySegment::open(std::move(received->fd), received->message.bytes);
  ASSERT_TRUE(mapped.ok());
  EXPECT_EQ(mapped.value().data()[5], std::byte{7});
}

TEST(PeerMessage, SilenceIsNoEnd) {
  auto ends = std::move(make_packet_sockets()).value();
  EXPECT_FALSE(receive_message(ends[1].get()).value().has_value());
  ends[0].reset();
  const auto end = receive_message(ends[1].get());
  ASSERT_FALSE(end.ok());
  EXPECT_EQ(end.error().code, ErrorCode::kRankLost);
}

TEST(PeerMessage, WithoutADescriptorOrCutItIsMalformed) {
  const auto ends = std::move(make_packet_sockets()).value();
  const PeerMessage message;
  const auto bytes = std::as_bytes(std::span(&message, 1));
  const int fds[] = {ends[0].get()};
  ASSERT_TRUE(send_packet(ends[0].get(), bytes, {}).ok());
  ASSERT_TRUE(send_packet(ends[0].get(), bytes.first(4), fds).ok());
  for (int i = 0; i < 2; ++i) {
    const auto received = receive_message(ends[1].get());
    ASSERT_FALSE(received.ok());
    EXPECT_EQ(received.error().code, ErrorCode::kMalformed);
  }
}

}  // namespace
}  // namespace ciranda
