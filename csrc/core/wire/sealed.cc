#include "core/wire/sealed.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "core/wire/codec.h"

namespace ciranda {
namespace {

using Seal = std::array<std::byte, kSealBytes>;

// The first four bytes, read as the length of a frame, exceed every limit. So the seal of a frame
// is never valid for a data header, even under the same key.
constexpr std::string_view kDataLabel = "ciranda data header";
constexpr std::string_view kPayloadLabel = "ciranda data payload";

Seal seal_of(const Secret& key, std::string_view label, std::span<const std::byte> bytes) {
  const MacTag tag = hmac_sha256(key, {std::as_bytes(std::span(label)), bytes});
  Seal seal;
  std::copy_n(tag.begin(), kSealBytes, seal.begin());
  return seal;
}

Error malformed(std::string text) {
  return {.code = ErrorCode::kMalformed, .text = std::move(text)};
}

}  // namespace

void FrameSealer::seal(std::uint8_t type, std::span<const std::byte> payload,
                       std::vector<std::byte>& out) {
  CIRANDA_ASSERT(payload.size() <= kSealedPayloadBytesMax);
  const std::size_t begin = out.size();
  Writer writer(out);
  writer.u32(static_cast<std::uint32_t>(payload.size()));
  writer.u8(type);
  writer.u64(counter_++);
  writer.bytes(payload);
  writer.bytes(seal_of(key_, "", std::span(out).subspan(begin)));
}

bool FrameOpener::fill_to(std::size_t size, std::span<const std::byte>& input) {
  const std::size_t taken = std::min(size - buffer_.size(), input.size());
  buffer_.insert(buffer_.end(), input.begin(), input.begin() + static_cast<std::ptrdiff_t>(taken));
  input = input.subspan(taken);
  return buffer_.size() == size;
}

Error FrameOpener::broken(std::string text) {
  broken_ = malformed("frame " + std::to_string(counter_) + " " + std::move(text));
  return *broken_;
}

Result<std::optional<OpenedFrame>> FrameOpener::open(std::span<const std::byte>& input) {
  if (broken_.has_value()) return *broken_;
  if (frame_bytes_ != 0 && buffer_.size() == frame_bytes_) {  // handed out by the last call
    buffer_.clear();
    frame_bytes_ = 0;
  }
  if (frame_bytes_ == 0) {
    if (!fill_to(kSealedHeaderBytes, input)) return std::optional<OpenedFrame>();
    const std::size_t payload_bytes = Reader(buffer_).u32("length");
    if (payload_bytes > kSealedPayloadBytesMax) {
      return broken("announces " + std::to_string(payload_bytes) +
                    " bytes and exceeds the limit of " + std::to_string(kSealedPayloadBytesMax));
    }
    frame_bytes_ = kSealedHeaderBytes + payload_bytes + kSealBytes;
  }
  if (!fill_to(frame_bytes_, input)) return std::optional<OpenedFrame>();

  const std::span<const std::byte> sealed = std::span(buffer_).first(frame_bytes_ - kSealBytes);
  const std::span<const std::byte> seal = std::span(buffer_).subspan(sealed.size());
  if (!equal_in_constant_time(seal_of(key_, "", sealed), seal)) {
    return broken("was changed on its way: its seal does not fit");
  }
  Reader reader(sealed.subspan(4));
  const std::uint8_t type = reader.u8("type", 255);
  const std::uint64_t counter = reader.u64("counter");
  if (counter != counter_) {
    return broken("was due, but frame " + std::to_string(counter) + " came");
  }
  ++counter_;
  return std::optional(OpenedFrame{.type = type, .payload = sealed.subspan(kSealedHeaderBytes)});
}

DataSealer::DataSealer(Secret key) : key_(std::move(key)), mac_(key_, kPayloadLabel) {}

SealedDataHeader DataSealer::seal(const DataHeader& header, std::span<const std::byte> payload) {
  const Piece whole = payload;
  return seal(header, std::span(&whole, payload.empty() ? 0 : 1));
}

SealedDataHeader DataSealer::seal(const DataHeader& header, std::span<const Piece> payload) {
  std::vector<std::byte> out;
  out.reserve(kDataHeaderBytes);
  Writer writer(out);
  writer.u32(header.bytes);
  writer.u32(header.step);
  writer.u64(counter_);
  writer.u64(header.operation);
  writer.bytes(payload.empty() ? MessageMac::Tag{} : mac_.tag(counter_, payload));
  writer.bytes(seal_of(key_, kDataLabel, out));
  ++counter_;
  SealedDataHeader sealed;
  CIRANDA_ASSERT(out.size() == sealed.size());
  std::ranges::copy(out, sealed.begin());
  return sealed;
}

DataOpener::DataOpener(Secret key) : key_(std::move(key)), mac_(key_, kPayloadLabel) {}

Result<DataHeader> DataOpener::open(const SealedDataHeader& bytes) {
  const std::span<const std::byte> sealed = std::span(bytes).first<kDataHeaderBytes - kSealBytes>();
  if (!equal_in_constant_time(seal_of(key_, kDataLabel, sealed),
                              std::span(bytes).subspan(sealed.size()))) {
    return malformed("data header " + std::to_string(counter_) +
                     " was changed on its way: its seal does not fit");
  }
  Reader reader(sealed);
  DataHeader header;
  header.bytes = reader.u32("bytes");
  header.step = reader.u32("step");
  const std::uint64_t counter = reader.u64("counter");
  header.operation = reader.u64("operation");
  if (counter != counter_) {
    return malformed("data header " + std::to_string(counter_) + " was due, but header " +
                     std::to_string(counter) + " came");
  }
  ++counter_;
  std::ranges::copy(sealed.subspan(reader.offset()), due_.begin());
  return header;
}

Status DataOpener::check(std::span<const std::byte> payload) {
  const Piece whole = payload;
  return check(std::span(&whole, 1));
}

Status DataOpener::check(std::span<const Piece> payload) {
  CIRANDA_ASSERT(counter_ > 0);
  if (equal_in_constant_time(mac_.tag(counter_ - 1, payload), due_)) return {};
  return malformed("message " + std::to_string(counter_ - 1) +
                   " was changed on its way, or its sender changed the memory while it was sent: "
                   "its tag does not fit");
}

}  // namespace ciranda
