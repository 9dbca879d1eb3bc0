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

// What travels on a connection between hosts once both sides are proven; docs/protocol.md has the
// bytes. Each direction has a key and a counter of its own, so nothing can be changed, repeated,
// left out, moved or sent back unnoticed. No I/O: bytes come in, in pieces of any size.
namespace ciranda {

inline constexpr std::size_t kSealBytes = 16;          // the first half of an HMAC-SHA256
inline constexpr std::size_t kSealedHeaderBytes = 13;  // payload bytes, type, counter

// Control connections carry sealed frames.
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

  // Takes bytes off the front of `input`, at most to the end of one frame; nothing when the frame
  // is not complete yet. The memory it takes never exceeds what came in or the limit of a frame.
  // kMalformed ends the connection: every later call gives it again.
  Result<std::optional<OpenedFrame>> open(std::span<const std::byte>& input);

 private:
  // Moves bytes from `input` until `size` are there.
  bool fill_to(std::size_t size, std::span<const std::byte>& input);
  Error broken(std::string text);

  Secret key_;
  std::uint64_t counter_ = 0;
  std::vector<std::byte> buffer_;  // the frame that is coming in
  std::size_t frame_bytes_ = 0;    // its length, 0 while the header is not complete
  std::optional<Error> broken_;
};

// Data connections carry a sealed header and then the bytes it announces, whose tag is in it.
struct DataHeader {
  std::uint32_t bytes = 0;      // that follow
  std::uint32_t step = 0;       // of the operation's schedule
  std::uint64_t operation = 0;  // its number in the order of the job
  bool operator==(const DataHeader&) const = default;
};
inline constexpr std::size_t kDataHeaderBytes = 24 + sizeof(MessageMac::Tag) + kSealBytes;
using SealedDataHeader = std::array<std::byte, kDataHeaderBytes>;

class DataSealer {
 public:
  explicit DataSealer(Secret key);
  // Without a payload what follows is not authenticated here; both sides know of it.
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
  // kMalformed when it is not the next header of the peer. The caller still checks bytes, step
  // and operation against what it expects before it reads on.
  Result<DataHeader> open(const SealedDataHeader& bytes);
  // kMalformed when these are not the bytes that the last header announced.
  Status check(std::span<const std::byte> payload);
  using Piece = MessageMac::Piece;
  Status check(std::span<const Piece> payload);

 private:
  Secret key_;
  MessageMac mac_;
  std::uint64_t counter_ = 0;
  MessageMac::Tag due_ = {};  // of the last header
};

}  // namespace ciranda
