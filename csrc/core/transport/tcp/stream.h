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

// A connected TCP socket as a stream of bytes: in clear, where nothing comes between the caller and
// the kernel, or through TLS. Never blocks and raises no SIGPIPE. An Error of any member is the
// end: kRankLost when the peer is gone, kMalformed when its bytes were changed. Not thread-safe.
class Stream {
 public:
  explicit Stream(Fd socket) : fd_(std::move(socket)) {}
  Stream(Fd socket, std::unique_ptr<TlsSession> tls)
      : fd_(std::move(socket)), tls_(std::move(tls)) {}

  int fd() const { return fd_.get(); }
  // Async-signal-safe. The peer hears of it by the end of the connection alone, so a forked child
  // may close what its parent goes on using.
  void close() noexcept { fd_.reset(); }
  Fd release() { return std::move(fd_); }

  // Goes on with the handshake of TLS; true once it is over, and at once in clear. Until then the
  // caller waits for readability. The peer may be a stranger: what is read from it is bounded.
  Result<bool> establish();

  // Sends what can go now of the pieces, one after the other, and gives how much went; when that is
  // not all the caller waits for writability. What did not go must come again unchanged, as the
  // next bytes: TLS may have encrypted it already.
  Result<std::size_t> send(std::span<const iovec> pieces);
  Result<std::size_t> send(std::span<const std::byte> bytes);

  // Receives what is there into the pieces, one after the other, and gives how much. Only when it
  // gives 0 may the caller wait for readability: the socket does not tell of bytes that were read
  // from it and are not decrypted yet.
  Result<std::size_t> receive(std::span<const iovec> into);
  Result<std::size_t> receive(std::span<std::byte> into);

 private:
  Result<bool> send_outgoing();
  Status seal_from(std::span<const iovec> pieces, std::size_t offset);
  Result<std::size_t> open(std::span<std::byte> into);
  Result<bool> read_more(std::size_t bytes_max);

  Fd fd_;
  std::unique_ptr<TlsSession> tls_;  // none: in clear
  std::size_t sealed_ = 0;  // bytes whose records are outgoing: not sent yet for the caller
  std::vector<std::byte> received_;
  std::span<const std::byte> unread_;  // of received_
};

}  // namespace ciranda
