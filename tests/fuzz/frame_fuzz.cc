// Whatever a frame decodes to is encoded to the same bytes: there is no second form of anything.
#include <algorithm>

#include "core/wire/messages.h"
#include "fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto frame = ciranda::decode_frame(bytes);
  if (!frame.ok()) return 0;
  std::vector<std::byte> again;
  ciranda::encode(frame.value(), again);
  CIRANDA_ASSERT(std::ranges::equal(again, bytes));
  return 0;
}
