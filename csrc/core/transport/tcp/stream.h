#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/wire/tls.h"

namespace ciranda {

// A connected TCP socket as a stream of bytes, either in clear (no copy between the caller and the
// kernel) or through TLS. Never blocks and raises no SIGPIPE. An Error of any member makes
// the stream unusable: kRankLost if the peer is gone, kMalformed if its bytes were changed on their
// way. Not thread-safe.
class Stream {
 public:
  explicit Stream(Fd socket) : fd_(std::move(socket)) {}
  Stream(Fd socket, std::unique_ptr<TlsSession> tls)
      : fd_(std::move(socket)), tls_(std::move(tls)) {}

  int fd() const { return fd_.get(); }
  // Closes the descriptor and sends no TLS close message, so a forked child may close a stream that
  // its parent still uses. Async-signal-safe.
  void close() noexcept { fd_.reset(); }
  Fd release() { return std::move(fd_); }

  // Continues the TLS handshake. Returns true when it is complete; in clear, immediately. The
  // caller polls for readability before the next call. The number of bytes read is bounded, because
  // the peer may be a stranger.
  Result<bool> establish();

  // Sends the pieces in order, as far as the socket takes them now, and returns the number of bytes
  // sent. If some are left, the caller polls for writability and passes them again, unchanged and
  // before any others: TLS may have encrypted them already.
  Result<std::size_t> send(std::span<const iovec> pieces);
  Result<std::size_t> send(std::span<const std::byte> bytes);

  // Receives available bytes into the pieces, in order, and returns their number. The caller may
  // poll for readability only after it returned 0: bytes that were read from the socket but are not
  // decrypted yet do not make it readable.
  Result<std::size_t> receive(std::span<const iovec> into);
  Result<std::size_t> receive(std::span<std::byte> into);

 private:
  Result<bool> send_outgoing();
  Status seal_from(std::span<const iovec> pieces, std::size_t offset);
  Result<std::size_t> open(std::span<std::byte> into);
  Result<bool> read_more(std::size_t bytes_max);

  Fd fd_;
  std::unique_ptr<TlsSession> tls_;  // null: in clear
  std::size_t sealed_ = 0;  // the caller's bytes that are encrypted but not reported as sent
  std::vector<std::byte> received_;
  std::span<const std::byte> unread_;  // rest of received_
};

}  // namespace ciranda
