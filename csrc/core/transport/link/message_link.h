#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/transport/tcp/connection.h"
#include "core/transport/tcp/socket_io.h"
#include "core/transport/tcp/stream.h"
#include "core/wire/sealed.h"

namespace ciranda {

// A proven connection that carries messages, each followed by the data that it speaks of: both
// sides know from the message how many bytes those are. Sealed headers (see wire/sealed.h), one
// before the message and one before every kSegmentBytes of data.
//
// Never blocks. After an Error the connection is of no use any more. Not thread-safe.
class MessageLink {
 public:
  static constexpr std::size_t kSegmentBytes = std::size_t{128} * 1024;
  using Outgoing = std::vector<std::span<const std::byte>>;
  using Incoming = std::vector<std::span<std::byte>>;

  // `authenticates`: data too, which both sides must have been told alike; messages always are.
  MessageLink(ProvenSocket socket, std::size_t message_bytes_max, bool authenticates);
  MessageLink(const MessageLink&) = delete;
  MessageLink& operator=(const MessageLink&) = delete;

  int fd() const { return stream_.fd(); }
  const std::string& address() const { return address_; }  // of the peer, for people
  void close() noexcept { stream_.close(); }               // async-signal-safe

  // Sends what the socket takes now; flush() sends the rest. The message is copied. The data, in
  // parts of which the other side expects each by itself, is read until it is sent, and must not
  // change until then; `owner` keeps it alive.
  Status send(std::span<const std::byte> message, std::vector<Outgoing> parts = {},
              std::shared_ptr<const void> owner = {});
  Status flush();
  bool has_queued() const { return !queue_.empty(); }
  std::size_t queued_messages() const { return queue_.size(); }
  // What receive_…() and flush() wait for.
  Watched watched() const {
    return {.socket = stream_.fd(), .readable = true, .writable = has_queued()};
  }

  // The next message, valid until the next call, or nothing yet. All data of the one before has
  // been received.
  Result<std::optional<std::span<const std::byte>>> receive_message();
  // The data that follows lands there, one place behind the other, in the calls of receive_data();
  // true once it has.
  void expect(Incoming places);
  Result<bool> receive_data();

 private:
  struct OutgoingMessage {
    std::vector<std::byte> message;
    std::vector<Outgoing> parts;
    std::shared_ptr<const void> owner;
    bool begun = false;      // its message is in pieces_, or sent
    std::size_t part = 0;    // of the data that comes next
    std::size_t place = 0;   // within that
    std::size_t offset = 0;  // within that
  };
  void begin_segment(OutgoingMessage& outgoing);
  Result<std::size_t> take(std::span<std::byte> into);
  Result<bool> receive_header(std::uint32_t kind, std::size_t bytes_max);
  Result<bool> fill_segment();

  Stream stream_;
  const std::string address_;
  const std::size_t message_bytes_max_;
  const bool authenticates_;
  DataSealer sealer_;
  DataOpener opener_;

  std::deque<OutgoingMessage> queue_;
  std::vector<iovec> pieces_;  // on their way, of the first in the queue
  std::array<SealedDataHeader, 2> headers_ = {};

  std::vector<std::byte> inbox_;
  std::span<const std::byte> unread_;  // of inbox_
  SealedDataHeader header_ = {};
  std::size_t header_have_ = 0;
  bool in_segment_ = false;  // its header has come
  std::vector<std::byte> message_;
  Incoming segment_;              // where its bytes go
  std::size_t segment_have_ = 0;  // of them
  Incoming places_;
  std::size_t place_ = 0;  // where the next segment begins
  std::size_t offset_ = 0;
  std::uint64_t missing_ = 0;  // bytes of data that no header has announced
};

}  // namespace ciranda
