#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/result.h"
#include "core/wire/codec.h"

namespace ciranda {

// The bytes of a message that is one of several kinds, a std::variant: a u8 with the index of its
// kind, then what the kind's own function writes.

// Appends the message to `out`. `write` is called with a Writer and the kind.
template <typename Message, typename Write>
void encode_kind(const Message& message, std::vector<std::byte>& out, Write write) {
  Writer writer(out);
  writer.u8(static_cast<std::uint8_t>(message.index()));
  std::visit([&](const auto& kind) { write(writer, kind); }, message);
}

// Reads the fields of the kind with this index, which is one of Message's.
template <typename Message, std::size_t kIndex = 0, typename Read>
Message kind_of(Reader& in, std::size_t index, const Read& read) {
  if constexpr (kIndex + 1 < std::variant_size_v<Message>) {
    if (index != kIndex) return kind_of<Message, kIndex + 1>(in, index, read);
  }
  std::variant_alternative_t<kIndex, Message> kind;
  read(in, kind);
  return kind;
}

// Returns the message; kMalformed if the bytes are none, or go on after it. `read` is called with a
// Reader and the kind.
template <typename Message, typename Read>
Result<Message> decode_kind(std::span<const std::byte> bytes, const Read& read) {
  Reader in(bytes);
  const std::size_t index = in.u8("message", std::variant_size_v<Message> - 1);
  if (!in.ok()) return in.error();
  Message message = kind_of<Message>(in, index, read);
  if (in.ok() && in.remaining() > 0) in.fail("message", "goes on after its end");
  if (!in.ok()) return in.error();
  return message;
}

}  // namespace ciranda
