// What could break: the ends of a streamed copy, which are not whole cache lines.
#include <gtest/gtest.h>

#include "core/kernels/reduce.h"
#include "kernels/oracle.h"

namespace ciranda::kernels {
namespace {

using oracle::Bytes;
using Counts = std::initializer_list<std::size_t>;

constexpr std::uint64_t kSeed = 0xc0b1;

class Copy : public testing::TestWithParam<const Variant*> {};
INSTANTIATE_TEST_SUITE_P(Variants, Copy, testing::ValuesIn(oracle::available_variants()),
                         oracle::variant_name);

TEST_P(Copy, PastCachesCopiesEveryLengthAtEveryAlignment) {
  std::mt19937_64 random(kSeed);
  const Bytes from = oracle::random_bits(random, 512);
  for (std::size_t to_shift = 0; to_shift < 64; ++to_shift) {
    for (const std::size_t bytes : Counts{0, 1, 31, 63, 64, 65, 127, 128, 200, 333}) {
      for (const std::size_t from_shift : Counts{0, 1, 33}) {
        Bytes want(512, std::byte{0xA5});
        std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(from_shift), bytes,
                    want.begin() + static_cast<std::ptrdiff_t>(to_shift));
        Bytes got(512, std::byte{0xA5});
        GetParam()->loops->copy_past_caches(got.data() + to_shift, from.data() + from_shift, bytes);
        ASSERT_EQ(got, want) << bytes << " bytes from " << from_shift << " to " << to_shift;
      }
    }
  }
}

TEST(CopyFront, CopiesSmallAndLargeMemory) {
  std::mt19937_64 random(kSeed);
  for (const std::size_t bytes : Counts{0, 100, (9 << 20) + 3}) {
    const Bytes from = oracle::random_bits(random, bytes);
    Bytes to(bytes);
    copy(to.data(), from.data(), bytes);
    EXPECT_TRUE(to == from) << bytes << " bytes";
  }
}

}  // namespace
}  // namespace ciranda::kernels
