#include "core/wire/codec.h"

#include <algorithm>

namespace ciranda {

std::uint64_t Reader::long_varint(const char* field, std::uint64_t max) {
  std::uint64_t value = 0;
  const std::byte* at = next_;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (at == end_) return fail(field, "is cut off"), 0;
    const auto byte = static_cast<std::uint64_t>(*at++);
    const std::uint64_t bits = byte & 0x7f;
    if (shift == 63 && bits > 1) break;  // beyond 64 bits
    value |= bits << shift;
    if (byte >= 0x80) continue;
    if (bits == 0 && shift > 0) return fail(field, "is not in its shortest form"), 0;
    if (value > max) return fail(field, "is out of range"), 0;
    next_ = at;
    return value;
  }
  return fail(field, "is longer than 64 bits"), 0;
}

std::uint64_t Reader::fixed(const char* field, std::size_t size) {
  if (remaining() < size) return fail(field, "is cut off"), 0;
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size; ++i) value |= static_cast<std::uint64_t>(next_[i]) << (8 * i);
  next_ += size;
  return value;
}

void Reader::bytes(const char* field, std::span<std::byte> into) {
  const std::string_view from = text(field, into.size());
  std::ranges::fill(into, std::byte{0});
  std::ranges::copy(std::as_bytes(std::span(from)), into.begin());
}

void Reader::zeros(const char* field, std::size_t size) {
  if (size > remaining()) return fail(field, "is cut off");
  if (!std::all_of(next_, next_ + size, [](std::byte byte) { return byte == std::byte{0}; })) {
    return fail(field, "is not zero");
  }
  next_ += size;
}

std::size_t Reader::count(const char* field, std::size_t max, std::size_t bytes_each) {
  CIRANDA_ASSERT(bytes_each > 0);
  const std::size_t value = varint(field, max);
  if (value > remaining() / bytes_each) return fail(field, "is more than the bytes that follow"), 0;
  return value;
}

std::string_view Reader::text(const char* field, std::size_t size) {
  if (size > remaining()) return fail(field, "is cut off"), std::string_view();
  const std::string_view value(reinterpret_cast<const char*>(next_), size);
  next_ += size;
  return value;
}

void Reader::fail(const char* field, std::string_view reason) {
  CIRANDA_ASSERT(field != nullptr);
  if (!ok()) return;  // the first fault is the cause, the others follow from it
  field_ = field;
  fault_offset_ = offset();
  reason_ = reason;
  next_ = end_;
}

Error Reader::error() const {
  CIRANDA_ASSERT(!ok());
  return {
      .code = ErrorCode::kMalformed,
      .text = std::string(field_) + " at byte " + std::to_string(fault_offset_) + " " + reason_};
}

}  // namespace ciranda
