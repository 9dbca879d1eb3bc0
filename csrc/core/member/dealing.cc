#include "core/member/dealing.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "core/base/assert.h"

namespace ciranda::member {
namespace {

std::uint32_t crc32_of(std::string_view text) {
  std::uint32_t crc = ~std::uint32_t{0};
  for (const char each : text) {
    crc ^= static_cast<unsigned char>(each);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320U : 0U);
  }
  return ~crc;
}

}  // namespace

std::size_t samples_of_block(const Deal& deal, std::size_t done, std::size_t size) {
  CIRANDA_ASSERT(done <= deal.samples && deal.batch > 0 && size > 0);
  const std::size_t left = deal.samples - done;
  const std::size_t whole = deal.batch * size;
  if (deal.drop_last) return left >= whole ? whole : 0;
  return left < whole + size ? left : whole;
}

Share share_of_block(std::size_t count, Rank rank, std::size_t size) {
  const auto place = static_cast<std::size_t>(rank);
  CIRANDA_ASSERT(count > 0 && place < size);
  if (count < size) return {.begin = place % count, .end = place % count + 1};
  const std::size_t each = count / size;
  const std::size_t more = count % size;
  const std::size_t begin = place * each + std::min(place, more);
  return {.begin = begin, .end = begin + each + (place < more ? 1 : 0)};
}

std::uint32_t seed_of_block(std::uint64_t seed, std::uint64_t pass, std::size_t done, Rank rank) {
  return crc32_of(std::to_string(seed) + " " + std::to_string(pass) + " " + std::to_string(done) +
                  " " + std::to_string(rank));
}

}  // namespace ciranda::member
