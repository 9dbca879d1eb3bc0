// Frames come out as they were sealed, in order, up to the first byte that was changed.
#include <algorithm>

#include "core/wire/sealed.h"
#include "fuzz/input.h"

namespace ciranda::fuzz {
namespace {

struct Sent {
  std::uint8_t type;
  std::vector<std::byte> payload;
};

// How many frames come out of `wire`; each must be the one that was sent.
std::size_t opened(std::span<const std::byte> wire, std::size_t piece,
                   const std::vector<Sent>& sent) {
  FrameOpener opener(test::secret_of(1));
  std::size_t count = 0;
  while (!wire.empty()) {
    std::span<const std::byte> input = wire.first(std::min(piece, wire.size()));
    wire = wire.subspan(input.size());
    while (!input.empty()) {
      const auto frame = opener.open(input);
      if (!frame.ok()) return count;
      if (!frame.value().has_value()) continue;
      CIRANDA_ASSERT(count < sent.size() && frame.value()->type == sent[count].type);
      CIRANDA_ASSERT(std::ranges::equal(frame.value()->payload, sent[count].payload));
      ++count;
    }
  }
  return count;
}

void run(Input input) {
  const std::size_t piece = 1u + input.u8();
  FrameSealer sealer(test::secret_of(1));
  std::vector<Sent> sent;
  std::vector<std::byte> wire;
  for (int frames = input.u8() % 8; frames > 0; --frames) {
    const std::uint8_t type = input.u8();
    const auto payload = input.bytes(input.u8());
    sent.push_back({.type = type, .payload = {payload.begin(), payload.end()}});
    sealer.seal(type, payload, wire);
  }
  std::vector<std::byte> changed = wire;
  if (sent.empty()) {
    changed.assign(input.rest().begin(), input.rest().end());
  } else {
    input.patch(changed);
  }
  const std::size_t count = opened(changed, piece, sent);
  CIRANDA_ASSERT((count == sent.size()) == (changed == wire || sent.empty()));

  SealedDataHeader header{};
  std::ranges::copy(std::span(changed).first(std::min(changed.size(), header.size())),
                    header.begin());
  DataOpener opener(test::secret_of(1));
  CIRANDA_ASSERT(!opener.open(header).ok());

  DataSealer data(test::secret_of(1));
  CIRANDA_ASSERT(wire.empty() || opener.open(data.seal({}, wire)).ok());
  CIRANDA_ASSERT(wire.empty() || opener.check(changed).ok() == (changed == wire));
}

}  // namespace
}  // namespace ciranda::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ciranda::fuzz::run({data, size});
  return 0;
}
