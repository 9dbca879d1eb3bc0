// Whatever decoders of servers and workers accept, encoders would have written byte for byte.
#include "core/ps/decide/journal.h"
#include "core/ps/decide/messages.h"
#include "core/ps/decide/model_codec.h"
#include "fuzz/input.h"

namespace ciranda::fuzz {
namespace {

template <typename T>
void check(const Result<T>& decoded, std::span<const std::byte> bytes) {
  if (!decoded) return;
  std::vector<std::byte> again;
  ps::encode(decoded.value(), again);
  CIRANDA_ASSERT(std::equal(bytes.begin(), bytes.end(), again.begin(), again.end()));
}

}  // namespace
}  // namespace ciranda::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ciranda::fuzz::Input input(data, size);
  const int what = input.u8() % 3;
  const auto bytes = input.rest();
  if (what == 1) {
    ciranda::fuzz::check(ciranda::ps::decode_model(bytes), bytes);
  } else if (what == 2) {
    ciranda::fuzz::check(ciranda::ps::decode_change(bytes), bytes);
  } else {
    ciranda::fuzz::check(ciranda::ps::decode_message(bytes), bytes);
  }
  return 0;
}
