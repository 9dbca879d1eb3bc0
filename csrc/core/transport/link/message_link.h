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

// A proven connection that carries messages. Data may follow a message, and both sides know its
// size from the message. A sealed header (wire/sealed.h) precedes each message and each segment of
// at most kSegmentBytes of data.
//
// Never blocks. An Error makes the connection unusable. Not thread-safe.
class MessageLink {
 public:
  static constexpr std::size_t kSegmentBytes = std::size_t{128} * 1024;
  using Outgoing = std::vector<std::span<const std::byte>>;
  using Incoming = std::vector<std::span<std::byte>>;

  // Messages are always authenticated. Data is authenticated if `authenticates` is true; both sides
  // must use the same value. A message of more than `message_bytes_max` bytes from the peer is
  // kMalformed.
  MessageLink(ProvenSocket socket, std::size_t message_bytes_max, bool authenticates);
  MessageLink(const MessageLink&) = delete;
  MessageLink& operator=(const MessageLink&) = delete;

  int fd() const { return stream_.fd(); }
  const std::string& address() const { return address_; }  // of the peer, for people
  void close() noexcept { stream_.close(); }               // async-signal-safe

  // Queues a message and its data, and sends as much as the socket takes now. flush() sends the
  // rest. The receiver calls expect() once for each part of the data that is not empty. The message
  // is copied. The data is not: it must not change before it is sent, and `owner` keeps it alive.
  Status send(std::span<const std::byte> message, std::vector<Outgoing> parts = {},
              std::shared_ptr<const void> owner = {});
  Status flush();
  bool has_queued() const { return !queue_.empty(); }
  std::size_t queued_messages() const { return queue_.size(); }
  // Returns the events that receive_…() and flush() wait for.
  Watched watched() const {
    return {.socket = stream_.fd(), .readable = true, .writable = has_queued()};
  }

  // Returns the next message, which is valid until the next call, or nullopt if it has not come
  // completely. Asserts that no expected data of the previous message is missing.
  Result<std::optional<std::span<const std::byte>>> receive_message();
  // Sets the places for the data that comes next. receive_data() fills them in order and returns
  // true when all of it has come.
  void expect(Incoming places);
  Result<bool> receive_data();

 private:
  struct OutgoingMessage {
    std::vector<std::byte> message;
    std::vector<Outgoing> parts;
    std::shared_ptr<const void> owner;
    bool begun = false;      // its message is in pieces_, or sent
    std::size_t part = 0;    // part of the next data to send
    std::size_t place = 0;   // place within the part
    std::size_t offset = 0;  // bytes within the place
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
  std::vector<iovec> pieces_;  // unsent pieces of the first queued message
  std::array<SealedDataHeader, 2> headers_ = {};

  std::vector<std::byte> inbox_;
  std::span<const std::byte> unread_;  // rest of inbox_
  SealedDataHeader header_ = {};
  std::size_t header_have_ = 0;
  bool in_segment_ = false;  // the header of a segment has come
  std::vector<std::byte> message_;
  Incoming segment_;              // destination of the segment's bytes
  std::size_t segment_have_ = 0;  // bytes of the segment that have come
  Incoming places_;
  std::size_t place_ = 0;  // start of the next segment in places_
  std::size_t offset_ = 0;
  std::uint64_t missing_ = 0;  // expected bytes of data that no header has announced
};

}  // namespace ciranda
