#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/transport/tcp/stream.h"
#include "core/transport/tcp/tcp.h"
#include "core/wire/handshake.h"
#include "core/wire/sealed.h"

namespace ciranda {

// A TCP connection whose both ends have proven that they hold the job's key.
struct ProvenSocket {
  Stream stream;
  Session session;
  std::string address;  // of the peer, for people
};

// How long one attempt may take, from the first byte to the proof; a listener allows as much.
inline constexpr std::uint64_t kProofMs = 2'000;

// Sealed frames over a proven control connection. Never blocks. After an Error the connection is of
// no use any more. Not thread-safe.
class ControlConnection {
 public:
  explicit ControlConnection(ProvenSocket socket);

  int fd() const { return stream_.fd(); }
  void close() noexcept { stream_.close(); }  // async-signal-safe
  Rank peer() const { return peer_; }
  const std::string& address() const { return address_; }

  // Seals a frame and sends what the socket takes; the rest waits for flush(), however much it is:
  // who has more to send looks at queued_bytes(). kRankLost when the peer is gone.
  Status send(std::uint8_t type, std::span<const std::byte> payload);

  // Sends on. While something waits, the caller looks out for writability.
  Status flush();
  bool has_queued() const { return queued_bytes() > 0; }
  std::size_t queued_bytes() const { return queued_.size() - sent_; }

  // See check_answers() of tcp.h; names the peer.
  Status check_answers(std::uint64_t limit_ms) const;

  // The next frame, or nothing yet. The payload is valid until the next call. kRankLost when the
  // peer has closed, kMalformed when its bytes cannot be trusted; both name it.
  Result<std::optional<OpenedFrame>> receive();

 private:
  Error about_peer(Error error) const;

  Stream stream_;
  Rank peer_;
  std::string address_;
  FrameSealer sealer_;
  FrameOpener opener_;
  std::vector<std::byte> queued_;
  std::size_t sent_ = 0;  // of queued_
  std::vector<std::byte> received_;
  std::span<const std::byte> unread_;  // of received_
};

}  // namespace ciranda
