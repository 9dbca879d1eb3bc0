#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/assert.h"
#include "core/base/result.h"

namespace ciranda {

// Integers are encoded with the least significant byte first. A varint holds seven bits a byte; a
// set top bit means that another byte follows. The reader accepts only the shortest form, so every
// value has exactly one encoding.
inline constexpr std::size_t kVarintBytesMax = 10;

constexpr std::size_t varint_bytes(std::uint64_t value) {
  return (static_cast<std::size_t>(std::bit_width(value | 1)) + 6) / 7;
}

// Encodes values at the end of a vector that the caller owns. Writing cannot fail.
class Writer {
 public:
  explicit Writer(std::vector<std::byte>& out) : out_(out) {}

  void u8(std::uint8_t value) { out_.push_back(static_cast<std::byte>(value)); }

  void u16(std::uint16_t value) { fixed<2>(value); }
  void u32(std::uint32_t value) { fixed<4>(value); }
  void u64(std::uint64_t value) { fixed<8>(value); }

  void f64(double value) { u64(std::bit_cast<std::uint64_t>(value)); }

  void varint(std::uint64_t value) {
    while (value >= 0x80) {
      out_.push_back(static_cast<std::byte>(value | 0x80));
      value >>= 7;
    }
    out_.push_back(static_cast<std::byte>(value));
  }

  void text(std::string_view value) { bytes(std::as_bytes(std::span(value))); }
  void bytes(std::span<const std::byte> value) {
    out_.insert(out_.end(), value.begin(), value.end());
  }

 private:
  template <std::size_t kBytes>
  void fixed(std::uint64_t value) {
    std::byte raw[kBytes];
    for (std::size_t i = 0; i < kBytes; ++i) raw[i] = static_cast<std::byte>(value >> (8 * i));
    bytes(raw);
  }

  std::vector<std::byte>& out_;
};

// Decodes untrusted bytes. The reader keeps the first fault with its field and offset. From then
// on every read returns zero and ok() is false, so callers may check once after several reads. It
// never reads past the end and never returns a count that the remaining bytes cannot hold.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes)
      : begin_(bytes.data()), next_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  bool ok() const { return field_ == nullptr; }
  std::size_t remaining() const { return static_cast<std::size_t>(end_ - next_); }
  std::size_t offset() const { return static_cast<std::size_t>(next_ - begin_); }

  std::uint8_t u8(const char* field, std::uint8_t max) {
    if (next_ == end_) return fail(field, "is cut off"), std::uint8_t{0};
    const auto value = static_cast<std::uint8_t>(*next_);
    if (value > max) return fail(field, "is out of range"), std::uint8_t{0};
    ++next_;
    return value;
  }

  std::uint64_t varint(const char* field, std::uint64_t max) {
    // One byte is by far the most frequent form.
    if (next_ != end_ && static_cast<std::uint8_t>(*next_) < 0x80) [[likely]] {
      const auto value = static_cast<std::uint64_t>(*next_);
      if (value > max) return fail(field, "is out of range"), std::uint64_t{0};
      ++next_;
      return value;
    }
    return long_varint(field, max);
  }

  std::uint16_t u16(const char* field) { return static_cast<std::uint16_t>(fixed(field, 2)); }
  std::uint32_t u32(const char* field) { return static_cast<std::uint32_t>(fixed(field, 4)); }
  std::uint64_t u64(const char* field) { return fixed(field, 8); }
  double f64(const char* field) { return std::bit_cast<double>(u64(field)); }

  // Reads the number of items that follow, each at least `bytes_each` bytes long. The number never
  // exceeds what the remaining bytes can hold, so the caller may allocate memory for it.
  std::size_t count(const char* field, std::size_t max, std::size_t bytes_each);

  // Returns a view of the next `size` bytes, valid as long as the input.
  std::string_view text(const char* field, std::size_t size);

  // Fills `into`, with zeros if too few bytes are left.
  void bytes(const char* field, std::span<std::byte> into);

  // Skips `size` reserved bytes. A byte that is not zero is a fault.
  void zeros(const char* field, std::size_t size);

  // Records a fault that the caller found in the values it read.
  void fail(const char* field, std::string_view reason);

  // Returns the first fault as kMalformed: "request.token at byte 17 is cut off". Asserts !ok().
  Error error() const;

 private:
  std::uint64_t long_varint(const char* field, std::uint64_t max);
  std::uint64_t fixed(const char* field, std::size_t size);

  const std::byte* begin_;
  const std::byte* next_;
  const std::byte* end_;
  const char* field_ = nullptr;  // set by the first fault
  std::size_t fault_offset_ = 0;
  std::string reason_;
};

}  // namespace ciranda
