// What a rank says of itself, and rank 0 of everybody: what is accepted is written byte for byte as
// it was read, and seats every rank once.
#include <algorithm>

#include "core/wire/introduction.h"
#include "fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ciranda;
  const auto bytes = std::as_bytes(std::span(data, size));
  std::vector<std::byte> again;
  if (const auto one = decode_introduction(bytes); one.ok()) {
    encode(one.value(), again);
    CIRANDA_ASSERT(std::ranges::equal(again, bytes));
  }
  auto introductions = decode_introductions(bytes);
  if (!introductions.ok()) return 0;
  again.clear();
  encode(introductions.value(), again);
  CIRANDA_ASSERT(std::ranges::equal(again, bytes));
  if (introductions.value().empty()) return 0;
  const auto hosts = seat(introductions.value());
  if (!hosts.ok()) {
    CIRANDA_ASSERT(!hosts.error().text.empty());
    return 0;
  }
  std::vector<bool> seated(introductions.value().size(), false);
  for (const auto& ranks : hosts.value()) {
    for (const Rank rank : ranks) {
      CIRANDA_ASSERT(rank >= 0 && static_cast<std::size_t>(rank) < seated.size());
      CIRANDA_ASSERT(!seated[static_cast<std::size_t>(rank)]);
      seated[static_cast<std::size_t>(rank)] = true;
    }
  }
  CIRANDA_ASSERT(std::ranges::all_of(seated, [](bool one) { return one; }));
  return 0;
}
