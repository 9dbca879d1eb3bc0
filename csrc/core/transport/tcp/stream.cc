#include "core/transport/tcp/stream.h"

#include <algorithm>

#include "core/base/assert.h"
#include "core/transport/tcp/tcp.h"

namespace ciranda {
namespace {

// Bytes that are encrypted before one send, and read before they are decrypted. Four records: a
// system call moves several of them, and they stay in the cache.
constexpr std::size_t kBatchBytes = std::size_t{64} * 1024;

iovec piece_of(std::span<const std::byte> bytes) {
  return {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
}

}  // namespace

Result<bool> Stream::establish() {
  while (tls_ != nullptr && !tls_->established()) {
    const Status shaken = tls_->shake_hands(unread_);
    // A peer that reads has room for the few bytes of a handshake. A failed handshake also leaves
    // bytes to send, which tell the peer why.
    auto all_sent = send_outgoing();
    if (!shaken) return shaken.error();
    if (!all_sent) return all_sent.error();
    if (!all_sent.value()) {
      return Error{.code = ErrorCode::kRankLost, .text = "it reads no answer"};
    }
    if (tls_->established()) break;
    auto more = read_more(TlsSession::kHandshakeBytesMax);
    if (!more || !more.value()) return more;
  }
  return true;
}

Result<std::size_t> Stream::send(std::span<const std::byte> bytes) {
  const iovec whole = piece_of(bytes);
  return send(std::span(&whole, 1));
}

Result<std::size_t> Stream::send(std::span<const iovec> pieces) {
  if (tls_ == nullptr) return send_some(fd_.get(), pieces);
  for (std::size_t sent = 0;;) {
    auto all_sent = send_outgoing();
    if (!all_sent) return all_sent.error();
    if (!all_sent.value()) return sent;
    sent += std::exchange(sealed_, 0);
    CIRANDA_TRY(seal_from(pieces, sent));
    if (sealed_ == 0) return sent;
  }
}

Result<bool> Stream::send_outgoing() {
  CIRANDA_ASSERT(tls_ != nullptr);
  while (!tls_->outgoing().empty()) {
    auto count = send_some(fd_.get(), tls_->outgoing());
    if (!count) return count.error();
    if (count.value() == 0) return false;
    tls_->sent(count.value());
  }
  return true;
}

// Encrypts at most kBatchBytes of the pieces, after their first `offset` bytes.
Status Stream::seal_from(std::span<const iovec> pieces, std::size_t offset) {
  CIRANDA_ASSERT(sealed_ == 0 && tls_->outgoing().empty());  // by send()
  for (const iovec& piece : pieces) {
    const std::size_t skipped = std::min(offset, piece.iov_len);
    offset -= skipped;
    const std::size_t bytes = std::min(piece.iov_len - skipped, kBatchBytes - sealed_);
    CIRANDA_TRY(tls_->seal({static_cast<const std::byte*>(piece.iov_base) + skipped, bytes}));
    sealed_ += bytes;
  }
  CIRANDA_ASSERT(offset == 0);  // fails if the caller did not pass all its unsent bytes again
  return {};
}

Result<std::size_t> Stream::receive(std::span<std::byte> into) {
  const iovec whole = piece_of(into);
  return receive(std::span(&whole, 1));
}

Result<std::size_t> Stream::receive(std::span<const iovec> into) {
  if (tls_ == nullptr) return receive_some(fd_.get(), into);
  std::size_t received = 0;
  for (const iovec& piece : into) {
    auto count = open({static_cast<std::byte*>(piece.iov_base), piece.iov_len});
    if (!count && received == 0) return count;
    if (!count) break;  // returns the bytes before the error; the next call reports it
    received += count.value();
    if (count.value() < piece.iov_len) break;
  }
  return received;
}

Result<std::size_t> Stream::open(std::span<std::byte> into) {
  std::size_t opened = 0;
  while (opened < into.size()) {
    auto count = tls_->open(unread_, into.subspan(opened));
    if (count && count.value() == 0) {
      auto more = read_more(kBatchBytes);
      if (more && more.value()) continue;
      if (!more) count = more.error();
    }
    if (!count && opened == 0) return count;
    if (!count || count.value() == 0) break;
    opened += count.value();
  }
  return opened;
}

// Returns false if the socket has no bytes now.
Result<bool> Stream::read_more(std::size_t bytes_max) {
  CIRANDA_ASSERT(unread_.empty());
  received_.resize(bytes_max);
  auto count = receive_some(fd_.get(), received_);
  if (!count) return count.error();
  unread_ = std::span(received_).first(count.value());
  return count.value() > 0;
}

}  // namespace ciranda
