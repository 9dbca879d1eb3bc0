#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/base/secret.h"
#include "core/wire/types.h"

// Sealed frames and data headers, which travel between hosts after the handshake; docs/protocol.md
// has the bytes. Each direction has its own key and counter, so the receiver notices when bytes are
// changed, repeated, left out, reordered or reflected. No I/O here. Not thread-safe.
namespace ciranda {

inline constexpr std::size_t kSealBytes = 16;          // the first half of an HMAC-SHA256
inline constexpr std::size_t kSealedHeaderBytes = 13;  // payload bytes, type, counter

// Seals the frames of a control connection.
class FrameSealer {
 public:
  explicit FrameSealer(Secret key) : key_(std::move(key)) {}

  // Appends one frame. Asserts that the payload is within kSealedPayloadBytesMax.
  void seal(std::uint8_t type, std::span<const std::byte> payload, std::vector<std::byte>& out);

 private:
  Secret key_;
  std::uint64_t counter_ = 0;
};

struct OpenedFrame {
  std::uint8_t type = 0;
  std::span<const std::byte> payload;  // valid until the next call
};

class FrameOpener {
 public:
  explicit FrameOpener(Secret key) : key_(std::move(key)) {}

  // Takes bytes off the front of `input`, at most to the end of one frame. Returns the frame, or
  // nullopt if it is not complete yet. The buffer never exceeds the bytes received or the limit of
  // a frame. Returns kMalformed for a frame that is changed, too long or out of order. The
  // connection is then useless: every later call returns the same error.
  Result<std::optional<OpenedFrame>> open(std::span<const std::byte>& input);

 private:
  // Moves bytes from `input` to the buffer until it has `size`. Returns true once it has.
  bool fill_to(std::size_t size, std::span<const std::byte>& input);
  Error broken(std::string text);

  Secret key_;
  std::uint64_t counter_ = 0;
  std::vector<std::byte> buffer_;  // the incoming frame
  std::size_t frame_bytes_ = 0;    // its length; 0 while the header is incomplete
  std::optional<Error> broken_;
};

// The header of a message on a data connection. It announces the bytes that follow and, sealed,
// carries their tag.
struct DataHeader {
  std::uint32_t bytes = 0;      // number of bytes that follow
  std::uint32_t step = 0;       // of the operation's schedule
  std::uint64_t operation = 0;  // its number in the order of the job
  bool operator==(const DataHeader&) const = default;
};
inline constexpr std::size_t kDataHeaderBytes = 24 + sizeof(MessageMac::Tag) + kSealBytes;
using SealedDataHeader = std::array<std::byte, kDataHeaderBytes>;

class DataSealer {
 public:
  explicit DataSealer(Secret key);
  // Returns the sealed header with the tag of `payload`. An empty payload gives a zero tag: the
  // bytes that follow are then not authenticated here, and both sides know that.
  SealedDataHeader seal(const DataHeader& header, std::span<const std::byte> payload = {});
  using Piece = MessageMac::Piece;
  SealedDataHeader seal(const DataHeader& header, std::span<const Piece> payload);

 private:
  Secret key_;
  MessageMac mac_;
  std::uint64_t counter_ = 0;
};

class DataOpener {
 public:
  explicit DataOpener(Secret key);
  // Returns the peer's next header; kMalformed if the bytes are not that. The caller still checks
  // bytes, step and operation against what it expects before it reads on.
  Result<DataHeader> open(const SealedDataHeader& bytes);
  // Returns kMalformed if `payload` does not fit the tag of the last header.
  Status check(std::span<const std::byte> payload);
  using Piece = MessageMac::Piece;
  Status check(std::span<const Piece> payload);

 private:
  Secret key_;
  MessageMac mac_;
  std::uint64_t counter_ = 0;
  MessageMac::Tag due_ = {};  // the tag of the last header
};

}  // namespace ciranda
