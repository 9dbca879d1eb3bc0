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

// A TCP connection after the handshake: both ends have proven that they hold the job's key.
struct ProvenSocket {
  Stream stream;
  Session session;
  std::string address;  // of the peer, for people
};

// Timeout of one attempt to connect, from the first byte to the proof, on both sides.
inline constexpr std::uint64_t kProofMs = 2'000;

// Sends and receives sealed frames over a proven control connection. Never blocks. An Error
// makes the connection unusable. Not thread-safe.
class ControlConnection {
 public:
  explicit ControlConnection(ProvenSocket socket);

  int fd() const { return stream_.fd(); }
  void close() noexcept { stream_.close(); }  // async-signal-safe
  Rank peer() const { return peer_; }
  const std::string& address() const { return address_; }

  // Seals a frame and sends as many bytes as the socket takes. The rest is queued for flush(). The
  // queue has no limit, so a caller with more to send checks queued_bytes() first. Returns
  // kRankLost if the peer is gone.
  Status send(std::uint8_t type, std::span<const std::byte> payload);

  // Sends queued bytes. While has_queued() is true the caller polls for writability.
  Status flush();
  bool has_queued() const { return queued_bytes() > 0; }
  std::size_t queued_bytes() const { return queued_.size() - sent_; }

  // Calls check_answers() of tcp.h; its error names the peer.
  Status check_answers(std::uint64_t limit_ms) const;

  // Returns the next frame, or nullopt if it has not arrived completely. The payload is valid until
  // the next call. Returns kRankLost if the peer has closed the connection, kMalformed if its bytes
  // cannot be trusted; both errors name the peer.
  Result<std::optional<OpenedFrame>> receive();

 private:
  Error about_peer(Error error) const;

  Stream stream_;
  Rank peer_;
  std::string address_;
  FrameSealer sealer_;
  FrameOpener opener_;
  std::vector<std::byte> queued_;
  std::size_t sent_ = 0;  // bytes at the front of queued_
  std::vector<std::byte> received_;
  std::span<const std::byte> unread_;  // rest of received_
};

}  // namespace ciranda
